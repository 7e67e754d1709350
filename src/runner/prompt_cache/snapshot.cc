#include "runner/prompt_cache/snapshot.h"

#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "runner/prompt_cache/cache_memory.h"

namespace longdecode::runner {
namespace {

Result<std::vector<uint8_t>> gather(const CacheMemory& memory,
                                    const std::vector<MemoryBlock>& blocks) {
  int64_t num_bytes = 0;
  for (const MemoryBlock& block : blocks) num_bytes += block.used_bytes;
  std::vector<uint8_t> bytes(static_cast<size_t>(num_bytes));
  uint8_t* to = bytes.data();
  for (const MemoryBlock& block : blocks) {
    LD_RETURN_IF_ERROR(memory.read(block, to));
    to += block.used_bytes;
  }
  return bytes;
}

Status scatter(const char* name, std::span<const uint8_t> bytes, const CacheMemory& memory,
               const std::vector<MemoryBlock>& blocks) {
  int64_t num_bytes = 0;
  for (const MemoryBlock& block : blocks) num_bytes += block.stored_bytes;
  if (num_bytes != static_cast<int64_t>(bytes.size())) {
    return invalid_argument("{} has {} bytes; {} are needed", name, bytes.size(), num_bytes);
  }
  const uint8_t* from = bytes.data();
  for (const MemoryBlock& block : blocks) {
    if (block.used_bytes > 0) LD_RETURN_IF_ERROR(memory.write(block, from));
    from += block.stored_bytes;
  }
  return Status();
}

}  // namespace

Result<RestorePoint> capture_point(const Session& session) {
  const auto logits = session.logits();
  RestorePoint point{session.num_tokens(), std::vector(logits.begin(), logits.end()), {}};
  LD_ASSIGN_OR_RETURN(const CacheMemory memory,
                      CacheMemory::open(session.cache(), session.options().device));
  LD_ASSIGN_OR_RETURN(point.rings, gather(memory, memory.ring_blocks(point.num_tokens)));
  return point;
}

Result<Snapshot> capture(const Session& session) {
  Snapshot snapshot;
  if (session.num_tokens() == 0) return snapshot;
  const int64_t count = session.num_tokens();
  LD_ASSIGN_OR_RETURN(snapshot.point, capture_point(session));
  LD_ASSIGN_OR_RETURN(const CacheMemory memory,
                      CacheMemory::open(session.cache(), session.options().device));
  LD_ASSIGN_OR_RETURN(snapshot.pages, gather(memory, memory.page_blocks(count, count)));
  return snapshot;
}

Status restore(const StoredPoint& point, Session* session) {
  if (point.stored_tokens < point.num_tokens) {
    return invalid_argument("stored_tokens is {}; num_tokens {} or more is needed",
                            point.stored_tokens, point.num_tokens);
  }
  return session->restore(point.num_tokens, point.logits, [&]() -> Status {
    LD_ASSIGN_OR_RETURN(const CacheMemory memory,
                        CacheMemory::open(session->cache(), session->options().device));
    LD_RETURN_IF_ERROR(scatter("pages", point.pages, memory,
                               memory.page_blocks(point.num_tokens, point.stored_tokens)));
    return scatter("rings", point.rings, memory, memory.ring_blocks(point.num_tokens));
  });
}

Status restore(const Snapshot& snapshot, Session* session) {
  const RestorePoint& point = snapshot.point;
  return restore({point.num_tokens, point.logits, point.rings, point.num_tokens, snapshot.pages},
                 session);
}

}  // namespace longdecode::runner
