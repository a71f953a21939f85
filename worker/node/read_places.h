// ReadPlaces: which of the places that a server told over a link (server/lane/told_places.h) have been read. The
// simulator uses it, too. Thread rule: the lane's thread.
#pragma once

#include <cstdint>

namespace tributary {

class ReadPlaces {
 public:
  // A later one has been read, and the server told so: this one may be somebody else's by now. Its message overtook, or
  // was held up with a broken connection, and counts as lost.
  bool over(std::uint64_t ticket) const { return ticket <= newest_; }
  // All bytes of that place, and of those before it, will not be looked at again.
  void read(std::uint64_t ticket) { newest_ = ticket; }
  std::uint64_t newest() const { return newest_; }

 private:
  std::uint64_t newest_ = 0;
};

}  // namespace tributary
