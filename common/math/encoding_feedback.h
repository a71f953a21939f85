// The encodings that say less than they are told and make up for it later; common/math/encoding.h describes them.
#pragma once

#include <memory>

#include "common/math/encoding.h"

namespace tributary {

const Encoding& int8_encoding();
const Encoding& onebit_encoding();
const Encoding& int8_delta_encoding();
// REQUIRES: 1 <= spec.keep_ppm <= 1'000'000.
std::shared_ptr<const Encoding> make_topk_encoding(EncodingSpec spec);

}  // namespace tributary
