#include "tools/cli/install_checks.h"

#include <unistd.h>

#include <filesystem>

#include "common/base/printed.h"
#include "common/config/config.h"
#include "common/doctor/check_list.h"
#include "tools/cluster/process.h"

namespace tributary::cli {

InstallFacts gather_install_facts() {
  InstallFacts facts;
  facts.folder = executable_dir();
  for (const char* program : {"tributary-server", "tributary-worker", "tributary-train"}) {
    if (::access((facts.folder + "/" + program).c_str(), X_OK) != 0) facts.missing_programs.emplace_back(program);
  }
  facts.data_dir = TrainConfig{}.data_dir;
  std::error_code ignored;
  facts.has_data = std::filesystem::is_directory(facts.data_dir, ignored);
  return facts;
}

std::vector<Check> judge(const InstallFacts& facts) {
  CheckList out;
  out.section("Tributary");
  if (facts.missing_programs.empty()) {
    out.ok("programs", "tributary-server, tributary-worker and tributary-train are in " + facts.folder);
  } else {
    out.problem("programs", "not in " + facts.folder + ": " + listed(facts.missing_programs),
                "build or install all of Tributary; `tributary up` starts them from there");
  }
  if (facts.has_data) {
    out.ok("Fashion-MNIST", "in " + facts.data_dir);
  } else {
    out.note("Fashion-MNIST", "not in " + facts.data_dir,
             "for the example: apt-get install dataset-fashion-mnist, or set train.data_dir");
  }
  return out.take();
}

}  // namespace tributary::cli
