#include "bench/gloo_rank.h"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/transport/tcp/device.h>

namespace tributary::bench {

GlooRank::GlooRank(const std::string& address, std::uint32_t rank, std::uint32_t size, gloo::rendezvous::Store& store,
                   std::chrono::milliseconds timeout)
    : context_(std::make_shared<gloo::rendezvous::Context>(static_cast<int>(rank), static_cast<int>(size))) {
  gloo::transport::tcp::attr attributes(address.c_str());
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  if (timeout.count() != 0) context_->setTimeout(timeout);
  context_->connectFullMesh(store, device);
}

void GlooRank::sum(const float* in, float* out, std::size_t count) {
  gloo::AllreduceOptions call(context_);
  call.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  // Gloo does not say const; it only reads.
  if (in != nullptr) call.setInput(const_cast<float*>(in), count);
  call.setOutput(out, count);
  using Sum = void (*)(void*, const void*, const void*, std::size_t);
  call.setReduceFunction(static_cast<Sum>(&gloo::sum<float>));
  gloo::allreduce(call);
}

}  // namespace tributary::bench
