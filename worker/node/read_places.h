// ReadPlaces: which of a server's places over a link (server/lane/told_places.h) have been read. The simulator uses it,
// too. Thread rule: the lane's thread.
#pragma once

#include <cstdint>

namespace tributary {

class ReadPlaces {
 public:
  // Returns whether a later place has been read and acknowledged: then this one may be reused by now. Its message was
  // overtaken, or held up with a broken connection, and counts as lost.
  bool over(std::uint64_t ticket) const { return ticket <= newest_; }
  // All bytes of that place, and of those before it, will not be looked at again.
  void read(std::uint64_t ticket) { newest_ = ticket; }
  std::uint64_t newest() const { return newest_; }

 private:
  std::uint64_t newest_ = 0;
};

}  // namespace tributary
