#include "server/store/records.h"

#include "common/wire/codec_fields.h"
#include "schema/records.capnp.h"
#include "server/chunk/record_seal.h"

namespace tributary::records {
namespace {

using codec::Reader;
using codec::Writer;

}  // namespace

std::string seal(const StoreIdentity& record, std::uint32_t format) {
  capnp::MallocMessageBuilder builder;
  auto out = builder.initRoot<record::StoreIdentity>();
  out.setFormat(format);
  StoreIdentity::fields(record, Writer(out));
  return seal_message(builder);
}

Result<StoreIdentity> unseal_identity(std::string_view bytes, std::string_view what) {
  return unseal_message<StoreIdentity, record::StoreIdentity>(bytes, what, [](record::StoreIdentity::Reader in) {
    StoreIdentity out;
    StoreIdentity::fields(out, Reader(in));
    return out;
  });
}

std::string seal(const SnapshotRecord& record, std::uint32_t format) {
  capnp::MallocMessageBuilder builder;
  auto out = builder.initRoot<record::SnapshotRecord>();
  out.setFormat(format);
  SnapshotRecord::fields(record, Writer(out));
  return seal_message(builder);
}

Result<SnapshotRecord> unseal_snapshot(std::string_view bytes, std::string_view what) {
  return unseal_message<SnapshotRecord, record::SnapshotRecord>(bytes, what, [](record::SnapshotRecord::Reader in) {
    SnapshotRecord out;
    SnapshotRecord::fields(out, Reader(in));
    out.info.chunks = static_cast<std::uint32_t>(out.chunks.size());
    return out;
  });
}

}  // namespace tributary::records
