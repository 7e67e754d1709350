// A session's sequence in memory, to come back to.
#ifndef LONGDECODE_RUNNER_PROMPT_CACHE_SNAPSHOT_H_
#define LONGDECODE_RUNNER_PROMPT_CACHE_SNAPSHOT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "longdecode/status.h"
#include "runner/model/session.h"

namespace longdecode::runner {

// A length from which a sequence can go on, with what only exists at that length: the logits and
// the recent keys of a two-plane cache. The pages hold it as long as they hold more tokens.
struct RestorePoint {
  int64_t num_tokens = 0;
  std::vector<float> logits;   // [vocab_size]
  std::vector<uint8_t> rings;  // ring_blocks, one after the other
};

// Where the session is now (1 token or more).
Result<RestorePoint> capture_point(const Session& session);

struct Snapshot {
  RestorePoint point;          // num_tokens 0: nothing
  std::vector<uint8_t> pages;  // page_blocks, one after the other
};

Result<Snapshot> capture(const Session& session);

// A point of which `pages` holds stored_tokens tokens, its own first. Sizes are checked.
struct StoredPoint {
  int64_t num_tokens = 0;
  std::span<const float> logits;
  std::span<const uint8_t> rings;
  int64_t stored_tokens = 0;
  std::span<const uint8_t> pages;
};

// The session goes on from there, bit for bit. Its format is the one of the capture.
Status restore(const StoredPoint& point, Session* session);
Status restore(const Snapshot& snapshot, Session* session);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_PROMPT_CACHE_SNAPSHOT_H_
