// RedoQueue: what waits to be written to a redo log, in order. Pure: RedoLogs has it under its lock, the simulator as
// it is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/messages.h"
#include "server/redo_record.h"

namespace tributary {

class RedoQueue {
 public:
  using Calls = std::vector<std::function<void()>>;
  struct Item {  // one of the three
    LoggedStep step;
    std::optional<Version> cut;     // what the log has of later versions is void
    std::function<void()> flushed;  // everything before it was written
  };

  bool empty() const { return items_.empty(); }
  std::size_t size() const { return items_.size(); }
  const Item& front() const { return items_.front(); }

  void append(LoggedStep step) { items_.push_back({std::move(step), {}, {}}); }
  void when_flushed(std::function<void()> done) { items_.push_back({{}, {}, std::move(done)}); }
  // Cuts one after another are one: there would be as many as there are views that could not begin, otherwise.
  void cut(Version version) {
    if (!items_.empty() && items_.back().cut) {
      items_.pop_back();
      cuts_.back() = std::min(cuts_.back(), version);
    } else {
      cuts_.push_back(version);
    }
    items_.push_back({{}, cuts_.back(), {}});
  }

  // The first item, to be written: a cut counts until cut_written().
  Item take() {
    Item first = std::move(items_.front());
    items_.pop_front();
    return first;
  }
  // It could not be written.
  void put_back(Item item) { items_.push_front(std::move(item)); }
  void cut_written() {
    if (!cuts_.empty()) cuts_.pop_front();  // unless clear() was called meanwhile
  }

  // Of what a log has on disk, what is not about to be void.
  LoggedRounds valid(LoggedRounds range) const {
    for (const Version cut : cuts_) range.last = std::min(range.last, Round(cut.value));
    return range;
  }

  // Nothing can be written now: cuts stay, steps if they are to wait, else they go to `dropped`. Who waits for a flush
  // is returned, as there is nothing to wait for.
  Calls hold(bool steps_wait, std::vector<Item>& dropped) {
    Calls flushed;
    std::deque<Item> kept;
    for (Item& item : items_) {
      if (item.flushed) {
        flushed.push_back(std::move(item.flushed));
      } else if (item.cut || steps_wait) {
        kept.push_back(std::move(item));
      } else {
        dropped.push_back(std::move(item));
      }
    }
    items_ = std::move(kept);
    return flushed;
  }
  // Everything goes; what was taken and is not written yet counts no more. Returns who waits for a flush.
  Calls clear() {
    Calls flushed;
    for (Item& item : items_) {
      if (item.flushed) flushed.push_back(std::move(item.flushed));
    }
    items_.clear();
    cuts_.clear();
    return flushed;
  }

 private:
  std::deque<Item> items_;
  std::deque<Version> cuts_;  // in it, or taken and not written yet
};

}  // namespace tributary
