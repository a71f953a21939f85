// Where PyPI's packages of NVIDIA's libraries lie (nvidia-nccl-cu13): whoever has PyTorch has them, and often nothing
// else of CUDA.
#pragma once

#include <string>
#include <vector>

namespace tributary {

// The folders nvidia/*/lib of the Python installations whose `python3` is in a folder of `path` (as the variable PATH
// has them, in that order), and of packages that the user with the folder `home` installed. Those that exist.
std::vector<std::string> python_library_folders(const std::string& path, const std::string& home);

}  // namespace tributary
