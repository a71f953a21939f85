// All targets by name.
#include <cstdio>

#include "tests/fuzz/fuzz_target.h"

namespace tributary::fuzz {

namespace attach {
Target target();
}
namespace changed {
Target target();
}
namespace client {
Target target();
}
namespace config {
Target target();
}
namespace control {
Target target();
}
namespace coordinator {
Target target();
}
namespace data {
Target target();
}
namespace frames {
Target target();
}
namespace http {
Target target();
}
namespace job_json {
Target target();
}
namespace keys {
Target target();
}
namespace lane {
Target target();
}
namespace manifest {
Target target();
}
namespace packets {
Target target();
}
namespace records {
Target target();
}
namespace safetensors {
Target target();
}
namespace shard_file {
Target target();
}
namespace planted {
Target target();
}

namespace {

const Target kTargets[] = {attach::target(),     changed::target(),     client::target(),  config::target(),
                           control::target(),    coordinator::target(), data::target(),    frames::target(),
                           http::target(),       job_json::target(),    keys::target(),    lane::target(),
                           manifest::target(),   packets::target(),     records::target(), safetensors::target(),
                           shard_file::target(), planted::target()};

}  // namespace

const Target* named_target(int& argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  const auto found = std::ranges::find(kTargets, name, &Target::name);
  if (found == std::end(kTargets)) {
    std::fprintf(stderr, "no target '%s'; there are", argc > 1 ? argv[1] : "");
    for (const Target& one : kTargets)
      std::fprintf(stderr, " %.*s", static_cast<int>(one.name.size()), one.name.data());
    std::fprintf(stderr, "\n");
    return nullptr;
  }
  std::copy(argv + 2, argv + argc + 1, argv + 1);  // with the null at its end
  --argc;
  return &*found;
}

}  // namespace tributary::fuzz
