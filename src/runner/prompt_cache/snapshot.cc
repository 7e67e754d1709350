#include "runner/prompt_cache/snapshot.h"

#include <cstring>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "runner/prompt_cache/cache_memory.h"

namespace longdecode::runner {
namespace {

std::vector<uint8_t> gather(const std::vector<MemoryBlock>& blocks) {
  int64_t num_bytes = 0;
  for (const MemoryBlock& block : blocks) num_bytes += block.used_bytes;
  std::vector<uint8_t> bytes(static_cast<size_t>(num_bytes));
  uint8_t* to = bytes.data();
  for (const MemoryBlock& block : blocks) {
    std::memcpy(to, block.data, static_cast<size_t>(block.used_bytes));
    to += block.used_bytes;
  }
  return bytes;
}

Status scatter(const char* name, std::span<const uint8_t> bytes,
               const std::vector<MemoryBlock>& blocks) {
  int64_t num_bytes = 0;
  for (const MemoryBlock& block : blocks) num_bytes += block.stored_bytes;
  if (num_bytes != static_cast<int64_t>(bytes.size())) {
    return invalid_argument("{} has {} bytes; {} are needed", name, bytes.size(), num_bytes);
  }
  const uint8_t* from = bytes.data();
  for (const MemoryBlock& block : blocks) {
    if (block.used_bytes > 0) {
      std::memcpy(block.data, from, static_cast<size_t>(block.used_bytes));
    }
    from += block.stored_bytes;
  }
  return Status();
}

}  // namespace

RestorePoint capture_point(const Session& session) {
  const auto logits = session.logits();
  return {session.num_tokens(), std::vector(logits.begin(), logits.end()),
          gather(ring_blocks(session.cache(), session.num_tokens()))};
}

Snapshot capture(const Session& session) {
  if (session.num_tokens() == 0) return {};
  const int64_t count = session.num_tokens();
  return {capture_point(session), gather(page_blocks(session.cache(), count, count))};
}

Status restore(const StoredPoint& point, Session* session) {
  if (point.stored_tokens < point.num_tokens) {
    return invalid_argument("stored_tokens is {}; num_tokens {} or more is needed",
                            point.stored_tokens, point.num_tokens);
  }
  return session->restore(point.num_tokens, point.logits, [&] {
    LD_RETURN_IF_ERROR(
        scatter("pages", point.pages,
                page_blocks(session->cache(), point.num_tokens, point.stored_tokens)));
    return scatter("rings", point.rings, ring_blocks(session->cache(), point.num_tokens));
  });
}

Status restore(const Snapshot& snapshot, Session* session) {
  const RestorePoint& point = snapshot.point;
  return restore({point.num_tokens, point.logits, point.rings, point.num_tokens, snapshot.pages},
                 session);
}

}  // namespace longdecode::runner
