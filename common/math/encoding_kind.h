// EncodingKind: properties of an encoding that do not depend on its parameters. Each stands next to its encoding;
// encoding.cc lists them.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "common/base/assert.h"
#include "common/math/encoding.h"

namespace tributary {

enum class EncodingUse { kBoth, kPush, kPull };

struct EncodingKind {
  EncodingId id;  // its place in the list
  std::string_view name;
  std::string_view pattern;  // how jobs write it, in words: "topk:R (R from ...)"
  EncodingUse use;
  // From what stands behind "name:". Null: it has no parameters.
  std::optional<EncodingSpec> (*parse)(std::string_view parameters);
  std::shared_ptr<const Encoding> (*make)(EncodingSpec spec);
};

// make() of an encoding without parameters: shared and static, so there is nothing to own.
template <class E>
std::shared_ptr<const Encoding> the_only(EncodingSpec) {
  static const E encoding;
  return {std::shared_ptr<const Encoding>(), &encoding};
}

}  // namespace tributary
