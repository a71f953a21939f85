#include "common/math/encoding.h"

#include <algorithm>
#include <bit>

#include "common/base/assert.h"
#include "common/math/encoding_int8.h"
#include "common/math/encoding_onebit.h"
#include "common/math/encoding_plain.h"
#include "common/math/encoding_topk.h"
#include "kernels/tree_sum.h"

namespace tributary {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian and are used without conversion");

// All of them, a line each. The places are their ids, which are on the wire and in the store: append only.
constexpr const EncodingKind* kKinds[] = {
    &kFp32Kind, &kBf16Kind, &kFp16Kind, &kInt8Kind, &kTopKKind, &kOneBitKind, &kInt8DeltaKind,
};
static_assert([] {
  for (std::size_t id = 0; id < std::size(kKinds); ++id) {
    if (kKinds[id]->id != static_cast<EncodingId>(id)) return false;
  }
  return true;
}());

const EncodingKind& kind_of(EncodingId id) {
  const auto place = static_cast<std::size_t>(id);
  TRIB_ASSERT(place < std::size(kKinds));
  return *kKinds[place];
}

std::string patterns(EncodingUse other) {
  std::string text;
  for (const EncodingKind* kind : kKinds) {
    if (kind->use != other) text += (text.empty() ? "" : ", ") + std::string(kind->pattern);
  }
  return text;
}

}  // namespace

void decode_push(const Encoding& encoding, const std::byte* frame, std::uint64_t weight, std::size_t elements,
                 std::size_t first, std::size_t count, float* out) {
  encoding.decode(frame, elements, first, count, out);
  if (const float scale = encoding.push_scale(weight); scale != 1.0f) kernels::scale(out, count, 1.0f / scale);
}

std::string_view encoding_name(EncodingId id) {
  return kind_of(id).name;
}

std::uint16_t last_encoding() {
  return std::size(kKinds) - 1;
}

const Encoding& encoding_for(EncodingId id) {
  TRIB_ASSERT(kind_of(id).parse == nullptr);
  return *make_encoding(id);
}

std::shared_ptr<const Encoding> make_encoding(EncodingSpec spec) {
  return kind_of(spec.id).make(spec);
}

std::optional<EncodingSpec> parse_encoding(std::string_view text) {
  const std::size_t colon = text.find(':');
  const bool parameters = colon != std::string_view::npos;
  for (const EncodingKind* kind : kKinds) {
    if (kind->name != text.substr(0, colon) || parameters != (kind->parse != nullptr)) continue;
    return parameters ? kind->parse(text.substr(colon + 1)) : EncodingSpec(kind->id);
  }
  return std::nullopt;
}

bool usable_for_push(EncodingSpec spec) {
  return kind_of(spec.id).use != EncodingUse::kPull;
}

bool usable_for_pull(EncodingSpec spec) {
  return kind_of(spec.id).use != EncodingUse::kPush;
}

std::string push_encodings() {
  return patterns(EncodingUse::kPull);
}

std::string pull_encodings() {
  return patterns(EncodingUse::kPush);
}

}  // namespace tributary
