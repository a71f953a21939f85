// Folders of PyPI's packages of NVIDIA's libraries (nvidia-nccl-cu13): a machine with PyTorch has them, and often
// nothing else of CUDA.
#pragma once

#include <string>
#include <vector>

namespace tributary {

// Returns the existing folders nvidia/*/lib of the Python installations whose `python3` is in a folder of `path` (in
// the form and order of the variable PATH), and of packages that the user with the folder `home` installed.
std::vector<std::string> python_library_folders(const std::string& path, const std::string& home);

}  // namespace tributary
