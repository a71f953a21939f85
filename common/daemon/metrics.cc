#include "common/daemon/metrics.h"

#include <prometheus/check_names.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <sstream>
#include <utility>

#include "common/base/assert.h"
#include "common/base/version.h"

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

// Prometheus sums classes up from below.
prometheus::ClientMetric to_prometheus(const Metrics::Times& times) {
  prometheus::ClientMetric metric;
  metric.label = to_prometheus(times.labels);
  std::uint64_t& count = metric.histogram.sample_count;
  for (std::size_t i = 0; i < times.counts.in_class.size(); ++i) {
    count += times.counts.in_class[i];
    const bool last = i == Histogram::kSeconds.size();
    metric.histogram.bucket.push_back({count, last ? std::numeric_limits<double>::infinity() : Histogram::kSeconds[i]});
  }
  metric.histogram.sample_sum = times.counts.sum_s;
  return metric;
}

}  // namespace

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

void Metrics::identify(bool insecure) {
  gauge("tributary_build_info", "Always 1; the labels say which release this is.", {{"version", kVersion}},
        [] { return 1.0; });
  gauge("tributary_insecure", "1 if whoever reaches this daemon's ports is let in ([security] insecure).", {},
        [insecure] { return insecure ? 1.0 : 0.0; });
}

void Metrics::count(const std::string& prefix, const Labels& labels, const CountField& field, const LaneCounter& cell) {
  const auto read = [field, &cell] { return field.shown(cell.value()); };
  const std::string name = field.metric_name(prefix);
  field.grows() ? counter(name, field.help, labels, read) : gauge(name, field.help, labels, read);
}

void Metrics::counters(const std::string& name, const std::string& help, std::function<std::vector<Sample>()> read) {
  const std::lock_guard lock(mutex_);
  families_->add_many(name, help, prometheus::MetricType::Counter, std::move(read));
}

void Metrics::gauges(const std::string& name, const std::string& help, std::function<std::vector<Sample>()> read) {
  const std::lock_guard lock(mutex_);
  families_->add_many(name, help, prometheus::MetricType::Gauge, std::move(read));
}

void Metrics::histograms(const std::string& name, const std::string& help, std::function<std::vector<Times>()> read) {
  const std::lock_guard lock(mutex_);
  families_->add(name, help, prometheus::MetricType::Histogram,
                 [read = std::move(read)](prometheus::MetricFamily& out) {
                   for (const Times& times : read()) out.metric.push_back(to_prometheus(times));
                 });
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
