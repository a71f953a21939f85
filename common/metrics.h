// Metrics: what lanes count without locks, and how /metrics reads it.
//
// A lane bumps LaneCounter, LaneGauge and LaneHistogram with plain relaxed stores: no lock, no locked instruction, no
// cache line shared with another lane's writes if each lane has its own struct of them (alignas(64)). Metrics reads
// them when it is scraped.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tributary {

// Thread rule of all three: one writer; any number of readers, who may see each value a little late.
class LaneCounter {
 public:
  void add(std::uint64_t n = 1) { value_.store(value() + n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

class LaneGauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0.0};
};

class LaneHistogram {
 public:
  // bounds: upper bounds of the buckets, ascending; one more, for everything above, is added.
  explicit LaneHistogram(std::vector<double> bounds);
  void observe(double value);
  const std::vector<double>& bounds() const { return bounds_; }
  std::uint64_t bucket(std::size_t i) const { return counts_[i].value(); }  // i <= bounds().size(); not cumulative
  double sum() const { return sum_.value(); }

 private:
  const std::vector<double> bounds_;
  std::vector<LaneCounter> counts_;
  LaneGauge sum_;
};

// The set of metrics of one daemon. Thread rule: any thread. The readers given here are called by render() (the HTTP
// thread) and must stay valid, and what they read alive, until the Metrics object or its last render()
// is gone: stop AdminHttp first.
class Metrics {
 public:
  using Labels = std::map<std::string, std::string>;
  struct Sample {
    Labels labels;
    double value = 0.0;
  };

  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // A metric with fixed labels, read at scrape time. The same name may be registered again with other labels (one a
  // lane, say); kind and help must then be the same. Names as Prometheus has them: "tributary_server_pushes_total";
  // units in the name, base units.
  void counter(const std::string& name, const std::string& help, Labels labels, std::function<double()> read);
  void gauge(const std::string& name, const std::string& help, Labels labels, std::function<double()> read);
  void counter(const std::string& name, const std::string& help, Labels labels, const LaneCounter& source);
  void gauge(const std::string& name, const std::string& help, Labels labels, const LaneGauge& source);
  void histogram(const std::string& name, const std::string& help, Labels labels, const LaneHistogram& source);

  // A family whose members come and go (one a job): all samples of this moment.
  void counters(const std::string& name, const std::string& help, std::function<std::vector<Sample>()> read);
  void gauges(const std::string& name, const std::string& help, std::function<std::vector<Sample>()> read);

  // Prometheus text format 0.0.4. A reader must not call back into this object.
  std::string render() const;

 private:
  struct Families;
  mutable std::mutex mutex_;  // registration against render(); no lane takes it
  std::unique_ptr<Families> families_;
};

}  // namespace tributary
