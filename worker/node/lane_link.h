// LaneLink: a worker lane's side of one link to a server lane on this machine (common/wire/local_link.h), or of none:
// then all payloads of the connection go over its socket. Thread rule: the lane's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/wire/local_link.h"

namespace tributary {

// Which of a server's places over a link (server/lane/told_places.h) have been read.
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

class LaneLink {
 public:
  LaneLink() = default;  // none
  // Asks the server lane behind `socket` (connect_link()). regions: of the node's payloads; they outlive the link.
  static Result<LaneLink> ask(FileDescriptor socket, const LinkRequest& request,
                              std::vector<const SharedMemory*> regions, std::uint64_t now_ms);

  // Asked, and no reply yet: the socket becomes readable.
  bool asked() const { return socket_ && number_ == 0; }
  int fd() const { return socket_.get(); }
  // REQUIRES: asked(). Takes the reply if it has come. Then, or when it is overdue, asked() is false; an error is the
  // reason why nothing is shared.
  Status poll(std::uint64_t now_ms);

  bool shared() const { return number_ != 0; }
  // For the header of a message to the server: names the link, and where `payload` lies if it is in a region.
  PayloadPlace place(std::span<const std::byte> payload) const;
  // Returns a payload of the server, valid until read(). kInvalidArgument: it does not lie in the server's buffers, or
  // perhaps lies there no more.
  Result<std::span<const std::byte>> payload(const PayloadPlace& place) const;
  // Marks `place` as consumed. The next message (place()) reports it to the server.
  void read(const PayloadPlace& place) { read_.read(place.ticket); }

 private:
  FileDescriptor socket_;  // open as long as buffers_ are mapped: that keeps what the server told and read() has not
  std::uint64_t until_ms_ = 0;
  std::uint32_t number_ = 0;  // 0: nothing is shared
  std::vector<const SharedMemory*> regions_;
  ReadPlaces read_;
  SharedMemory buffers_;  // goes before socket_
};

}  // namespace tributary
