#include "common/metrics.h"

#include <prometheus/check_names.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

#include "common/assert.h"

namespace tributary {
namespace {

std::vector<prometheus::ClientMetric::Label> to_prometheus(const Metrics::Labels& labels) {
  std::vector<prometheus::ClientMetric::Label> out;
  for (const auto& [name, value] : labels) {
    TRIB_ASSERT(prometheus::CheckLabelName(name));
    out.push_back({name, value});
  }
  return out;
}

prometheus::ClientMetric to_prometheus(prometheus::MetricType type, const Metrics::Labels& labels, double value) {
  prometheus::ClientMetric metric;
  metric.label = to_prometheus(labels);
  (type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return metric;
}

prometheus::ClientMetric to_prometheus(const Metrics::Labels& labels, const LaneHistogram& source) {
  prometheus::ClientMetric metric;
  metric.label = to_prometheus(labels);
  prometheus::ClientMetric::Histogram& h = metric.histogram;
  // The total is the sum of the buckets read here, so that the two agree whatever the lane does meanwhile.
  for (std::size_t i = 0; i <= source.bounds().size(); ++i) {
    h.sample_count += source.bucket(i);
    const double bound = i < source.bounds().size() ? source.bounds()[i] : std::numeric_limits<double>::infinity();
    h.bucket.push_back({h.sample_count, bound});
  }
  h.sample_sum = source.sum();
  return metric;
}

}  // namespace

LaneHistogram::LaneHistogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {
  TRIB_ASSERT(std::is_sorted(bounds_.begin(), bounds_.end()));
}

void LaneHistogram::observe(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)].add();
  sum_.set(sum_.value() + value);
}

struct Metrics::Families {
  struct Family {
    std::string help;
    prometheus::MetricType type;
    std::vector<std::function<void(prometheus::MetricFamily&)>> readers;
  };
  std::map<std::string, Family> by_name;  // the order of the text

  void add(const std::string& name, const std::string& help, prometheus::MetricType type,
           std::function<void(prometheus::MetricFamily&)> reader) {
    TRIB_ASSERT(prometheus::CheckMetricName(name));
    Family& family = by_name.try_emplace(name, Family{help, type, {}}).first->second;
    TRIB_ASSERT(family.help == help && family.type == type);
    family.readers.push_back(std::move(reader));
  }

  void add_one(const std::string& name, const std::string& help, prometheus::MetricType type, Labels labels,
               std::function<double()> read) {
    add(name, help, type, [type, labels = std::move(labels), read = std::move(read)](prometheus::MetricFamily& out) {
      out.metric.push_back(to_prometheus(type, labels, read()));
    });
  }

  void add_many(const std::string& name, const std::string& help, prometheus::MetricType type,
                std::function<std::vector<Sample>()> read) {
    add(name, help, type, [type, read = std::move(read)](prometheus::MetricFamily& out) {
      for (const Sample& sample : read()) out.metric.push_back(to_prometheus(type, sample.labels, sample.value));
    });
  }
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {}
Metrics::~Metrics() = default;

void Metrics::counter(const std::string& name, const std::string& help, Labels labels, std::function<double()> read) {
  const std::lock_guard lock(mutex_);
  families_->add_one(name, help, prometheus::MetricType::Counter, std::move(labels), std::move(read));
}

void Metrics::gauge(const std::string& name, const std::string& help, Labels labels, std::function<double()> read) {
  const std::lock_guard lock(mutex_);
  families_->add_one(name, help, prometheus::MetricType::Gauge, std::move(labels), std::move(read));
}

void Metrics::counter(const std::string& name, const std::string& help, Labels labels, const LaneCounter& source) {
  counter(name, help, std::move(labels), [&source] { return static_cast<double>(source.value()); });
}

void Metrics::gauge(const std::string& name, const std::string& help, Labels labels, const LaneGauge& source) {
  gauge(name, help, std::move(labels), [&source] { return source.value(); });
}

void Metrics::histogram(const std::string& name, const std::string& help, Labels labels, const LaneHistogram& source) {
  const std::lock_guard lock(mutex_);
  families_->add(name, help, prometheus::MetricType::Histogram,
                 [labels = std::move(labels), &source](prometheus::MetricFamily& out) {
                   out.metric.push_back(to_prometheus(labels, source));
                 });
}

void Metrics::counters(const std::string& name, const std::string& help, std::function<std::vector<Sample>()> read) {
  const std::lock_guard lock(mutex_);
  families_->add_many(name, help, prometheus::MetricType::Counter, std::move(read));
}

void Metrics::gauges(const std::string& name, const std::string& help, std::function<std::vector<Sample>()> read) {
  const std::lock_guard lock(mutex_);
  families_->add_many(name, help, prometheus::MetricType::Gauge, std::move(read));
}

std::string Metrics::render() const {
  std::vector<prometheus::MetricFamily> collected;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, family] : families_->by_name) {
      prometheus::MetricFamily& out = collected.emplace_back();
      out.name = name;
      out.help = family.help;
      out.type = family.type;
      for (const auto& reader : family.readers) reader(out);
    }
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, collected);
  return text.str();
}

}  // namespace tributary
