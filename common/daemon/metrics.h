// Metrics: reads the daemons' counters for /metrics. Lanes count without locks (common/base/counters.h), each in a
// struct of its own; Metrics reads it when it is scraped.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/counters.h"
#include "common/base/histogram.h"

namespace tributary {

// The set of metrics of one daemon. Thread rule: any thread. render() (the HTTP thread) calls the readers given here.
// They and their data must live until the Metrics object or its last render() is gone: stop AdminHttp first.
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
  // Every counter of a set (common/base/counters.h).
  void counts(const std::string& prefix, const Labels& labels, const auto& set) {
    set.visit([&](const CountField& field, const LaneCounter& cell) { count(prefix, labels, field, cell); }, set);
  }

  // A family whose members come and go (one a job): all samples of this moment.
  void counters(const std::string& name, const std::string& help, std::function<std::vector<Sample>()> read);
  void gauges(const std::string& name, const std::string& help, std::function<std::vector<Sample>()> read);

  struct Times {
    Labels labels;
    Histogram::Counts counts;
  };
  void histograms(const std::string& name, const std::string& help, std::function<std::vector<Times>()> read);

  // Adds every daemon's own metrics: its release, and whether it listens without keys where others reach it.
  void identify(bool insecure);

  // Prometheus text format 0.0.4. A reader must not call back into this object.
  std::string render() const;

 private:
  void count(const std::string& prefix, const Labels& labels, const CountField& field, const LaneCounter& cell);

  struct Families;
  mutable std::mutex mutex_;  // registration against render(); no lane takes it
  std::unique_ptr<Families> families_;
};

}  // namespace tributary
