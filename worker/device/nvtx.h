// Names for the host's work on CUDA's streams, which Nsight Systems shows next to the kernels (NVTX). Nothing is
// recorded unless such a tool has started the process; where the toolkit was installed without NVTX there are none.
// For sources of CUDA builds only.
#pragma once

#if __has_include(<nvtx3/nvtx3.hpp>)
#include <nvtx3/nvtx3.hpp>
#endif

namespace tributary {

#if __has_include(<nvtx3/nvtx3.hpp>)
struct NvtxDomain {
  static constexpr const char* name = "tributary";
};
using NvtxRange = nvtx3::scoped_range_in<NvtxDomain>;  // from here to the end of the scope, on this thread
#else
struct NvtxRange {
  explicit NvtxRange(const char*) {}
};
#endif

}  // namespace tributary
