#include "bench/pushpull/echo_ceiling.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "common/base/layout.h"
#include "common/config/json_text.h"
#include "common/system/buffer_pool.h"
#include "common/wire/zmq_util.h"
#include "kernels/step/optimizer.h"

namespace tributary::bench {
namespace {

using std::chrono::milliseconds;
constexpr int kHighWater = 1000;
constexpr std::size_t kMaxMessage = kMaxChunkBytes + 4096;
constexpr milliseconds kReadyTimeout{60'000};
constexpr int kStopPollMs = 100;  // how often a client without answers looks whether it should stop

std::size_t chunks_per_pair(const EchoOptions& options) {
  const std::uint64_t all = options.model_bytes / options.chunk_bytes;
  return static_cast<std::size_t>(std::max<std::uint64_t>(all / options.pairs, kEchoInFlight));
}

struct ChunkState {
  BufferRef params;
  BufferRef slots[kernels::kMaxSlots];
};

void serve(const EchoOptions& options, zmq::socket_t& socket) {
  const auto optimizer = kernels::make_optimizer(options.optimizer, {.weight_decay = 0.01});
  const std::size_t count = chunks_per_pair(options);
  const auto slots = static_cast<std::size_t>(optimizer->slots());
  // The same pool as the server's: staggered against aliasing in the cache.
  BufferPool pool(options.chunk_bytes, count * (1 + slots));
  std::vector<ChunkState> states(count);
  for (ChunkState& state : states) {
    state.params = pool.acquire(options.chunk_bytes);
    std::fill(state.params.floats().begin(), state.params.floats().end(), 1.0f);
    for (std::size_t s = 0; s < slots; ++s) {
      state.slots[s] = pool.acquire(options.chunk_bytes);
      std::fill(state.slots[s].floats().begin(), state.slots[s].floats().end(),
                optimizer->initial_state(static_cast<int>(s)));
    }
  }
  const std::size_t elements = options.chunk_bytes / sizeof(float);
  for (std::uint64_t i = 0;; ++i) {
    zmq::message_t id, frame;
    if (!socket.recv(id) || !socket.recv(frame) || frame.size() != options.chunk_bytes) continue;
    ChunkState& state = states[i % count];
    kernels::BlockArgs block;
    block.count = elements;
    block.grad = static_cast<const float*>(frame.data());
    block.param_in = block.param_out = state.params.floats().data();
    for (std::size_t s = 0; s < slots; ++s) block.state_in[s] = block.state_out[s] = state.slots[s].floats().data();
    optimizer->step(optimizer->scalars(i / count + 1, 1e-3), block);
    try {
      socket.send(id, zmq::send_flags::sndmore);
      socket.send(frame, zmq::send_flags::none);
    } catch (const zmq::error_t&) {
      // The client has gone; this process is about to be terminated.
    }
  }
}

void request(const EchoOptions& options, const std::string& endpoint, std::atomic<std::uint64_t>& echoed,
             const std::atomic<bool>& stop) {
  const std::size_t count = chunks_per_pair(options);
  const std::size_t elements = options.chunk_bytes / sizeof(float);
  std::vector<float> gradients(count * elements, 1e-3f);
  LentMemory lent;  // outlives the context, whose thread returns what was lent
  zmq::context_t context(1);
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  set_common_options(socket, kMaxMessage, kHighWater);
  socket.set(zmq::sockopt::rcvtimeo, kStopPollMs);
  socket.connect(endpoint);
  std::uint64_t sent = 0;
  const auto send = [&] {
    const std::span<const float> chunk(gradients.data() + (sent++ % count) * elements, elements);
    auto message = lent.lend(std::as_bytes(chunk));
    socket.send(message, zmq::send_flags::none);
  };
  for (std::uint64_t i = 0; i < kEchoInFlight; ++i) send();
  zmq::message_t answer;
  while (!stop.load(std::memory_order_relaxed)) {
    if (!socket.recv(answer)) continue;
    echoed.store(echoed.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    send();
  }
}

double own_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

Result<std::vector<std::string>> wait_endpoints(Process& server, const std::string& log) {
  const auto until = std::chrono::steady_clock::now() + kReadyTimeout;
  while (server.running() && std::chrono::steady_clock::now() < until) {
    std::ifstream in(log);
    std::string line;
    while (std::getline(in, line) && !in.eof()) {
      if (!line.starts_with("ready ")) continue;
      const auto json = json_in(line.substr(6));
      if (json.is_object()) return json.value("endpoints", std::vector<std::string>{});
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return fail(ErrorCode::kUnavailable, "the echo server did not start; it said:\n" + last_lines(log, 5));
}

}  // namespace

Result<EchoResult> measure_echo(const EchoOptions& options) {
  const std::string log = options.folder + "/echo-server.log";
  std::remove(log.c_str());
  auto server = Process::spawn(
      {.argv = {options.program, "bench", "echo-server", "--transport",
                options.transport == Transport::kIpc ? "ipc" : "tcp", "--chunk-bytes",
                std::to_string(options.chunk_bytes), "--model-bytes", std::to_string(options.model_bytes), "--pairs",
                std::to_string(options.pairs), "--optimizer", options.optimizer, "--folder", options.folder},
       .log_file = log});
  if (!server) return tl::unexpected(server.error());
  const auto endpoints = wait_endpoints(*server, log);
  if (!endpoints) return tl::unexpected(endpoints.error());

  std::atomic<bool> stop{false};
  std::vector<std::atomic<std::uint64_t>> echoed(endpoints->size());
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < endpoints->size(); ++i) {
    clients.emplace_back([&, i] { request(options, (*endpoints)[i], echoed[i], stop); });
  }
  const auto total = [&] {
    std::uint64_t sum = 0;
    for (const auto& e : echoed) sum += e.load(std::memory_order_relaxed);
    return sum;
  };
  // Warm when every state and every gradient was touched once.
  const std::uint64_t warm = chunks_per_pair(options) * endpoints->size();
  const auto give_up = std::chrono::steady_clock::now() + kReadyTimeout;
  while (total() < warm && server->running() && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  const bool is_warm = total() >= warm;
  const auto cpu = [&] { return own_cpu_seconds() + server->usage().cpu_seconds; };
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t first = total();
  const double cpu_first = cpu();
  if (is_warm) std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  const std::uint64_t last = total();
  const double cpu_last = cpu();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  stop = true;
  for (std::thread& client : clients) client.join();
  if (!is_warm || last == first) {
    return fail(ErrorCode::kUnavailable, "the echo server does not answer; it said:\n" + last_lines(log, 5));
  }
  const double gigabytes = static_cast<double>(last - first) * static_cast<double>(options.chunk_bytes) * 1e-9;
  return EchoResult{.gb_per_s_each_way = gigabytes / elapsed.count(),
                    .cpu_seconds_per_gb = (cpu_last - cpu_first) / gigabytes};
}

int run_echo_server(const EchoOptions& options) {
  tune_malloc_for_frames();
  if (!kernels::make_optimizer(options.optimizer, {})) {
    std::fprintf(stderr, "unknown optimizer %s\n", options.optimizer.c_str());
    return 1;
  }
  std::vector<std::unique_ptr<zmq::context_t>> contexts;
  std::vector<std::unique_ptr<zmq::socket_t>> sockets;
  nlohmann::json endpoints = nlohmann::json::array();
  for (std::uint16_t i = 0; i < options.pairs; ++i) {
    contexts.push_back(std::make_unique<zmq::context_t>(1));
    sockets.push_back(std::make_unique<zmq::socket_t>(*contexts.back(), zmq::socket_type::router));
    set_common_options(*sockets.back(), kMaxMessage, kHighWater);
    const auto bound = bind_endpoint(*sockets.back(), options.transport == Transport::kIpc
                                                          ? "ipc://" + options.folder + "/echo-" + std::to_string(i)
                                                          : "tcp://127.0.0.1:*");
    if (!bound) {
      std::fprintf(stderr, "%s\n", bound.error().message.c_str());
      return 1;
    }
    endpoints.push_back(*bound);
  }
  std::printf("ready %s\n", nlohmann::json{{"endpoints", endpoints}}.dump().c_str());
  std::fflush(stdout);
  std::vector<std::thread> threads;
  for (auto& socket : sockets) threads.emplace_back([&options, &socket] { serve(options, *socket); });
  for (std::thread& thread : threads) thread.join();
  return 0;
}

}  // namespace tributary::bench
