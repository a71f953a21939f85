// A lab that is up: its namespaces exist and its links are limited.
//
// A lab is known by its name. /run/tributary-lab/NAME/ has `lock`, which the lab's current user holds, and
// `state.json`. A lab without its state (a crash while it was made, a reboot) is found by its namespaces' names.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "tools/lab/lab_config.h"
#include "tools/lab/lab_plan.h"
#include "tools/lab/link_check.h"

namespace tributary::lab {

inline constexpr const char* kLabFolder = "/run/tributary-lab/";

// The exclusive use of a lab's name, whether the lab is up or not.
class LabLock {
 public:
  // kUnavailable, naming the process, if another one has it.
  static Result<LabLock> take(const std::string& name);
  LabLock(LabLock&& other) noexcept;
  LabLock& operator=(LabLock&&) = delete;
  ~LabLock();

  const std::string& name() const { return name_; }
  // Removes the lab's folder with the lock in it: the last thing to do with a lab.
  void remove_folder();

 private:
  LabLock(std::string name, int fd) : name_(std::move(name)), fd_(fd) {}
  std::string name_;
  int fd_ = -1;
};

class Lab {
 public:
  using Interrupted = std::function<bool()>;

  // Brings a lab up, or takes over one of this name that is up already. Removes the rest of a crashed run first.
  // transient: the lab is taken down with this object unless it was up before. Errors: kUnavailable if it is in use, or
  // up with other hosts; kStopped if interrupted (the lab is removed); those of the commands.
  static Result<std::unique_ptr<Lab>> up(const LabConfig& config, bool transient, const Interrupted& interrupted);
  ~Lab();
  Lab(const Lab&) = delete;
  Lab& operator=(const Lab&) = delete;

  bool was_up() const { return was_up_; }
  const LabConfig& config() const { return config_; }
  const LabPlan& plan() const { return plan_; }
  // Links measured since the lab came up; empty: not measured.
  const std::vector<LinkCheck>& links() const { return links_; }
  Status verify(double seconds, const Interrupted& interrupted);
  // Ends the lab's processes, and removes it.
  Status down();

 private:
  Lab(LabConfig config, LabLock lock);
  Status make(const Interrupted& interrupted);
  Status write_state() const;

  LabConfig config_;
  LabPlan plan_;
  LabLock lock_;
  bool transient_ = false;
  bool was_up_ = false;
  bool exists_ = false;
  std::vector<LinkCheck> links_;
};

// Names of labs that are up or left traces, sorted.
std::vector<std::string> labs_found();

// Counts of what `take_down` removed.
struct Removed {
  std::size_t processes = 0, namespaces = 0;
};

// Ends the processes in a lab's namespaces, by process id, and removes the namespaces, the state and the folder.
// Succeeds if there is nothing.
Result<Removed> take_down(LabLock lock);

}  // namespace tributary::lab
