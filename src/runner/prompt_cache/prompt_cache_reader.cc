#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/dtype_name.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "runner/prompt_cache/cache_memory.h"
#include "runner/prompt_cache/layout.h"
#include "runner/prompt_cache/prompt_cache.h"

namespace longdecode::runner {
namespace {

constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();
constexpr int32_t kMaxLayers = 4096;  // as KvCache allows

// What stands before the checks that need sizes: is it one of ours, whole and undamaged?
Status check_frame(std::span<const uint8_t> bytes, PromptCacheHeader* header) {
  const size_t known = std::min(bytes.size(), sizeof(kPromptCacheMagic));
  if (bytes.empty() || std::memcmp(bytes.data(), kPromptCacheMagic, known) != 0) {
    return data_loss("is no prompt cache (it does not start with LDPROMPT)");
  }
  if (bytes.size() < sizeof(PromptCacheHeader) + kChecksumBytes) {
    return data_loss("is cut: {} bytes, less than a header", bytes.size());
  }
  std::memcpy(header, bytes.data(), sizeof(*header));
  if (header->version != kPromptCacheVersion) {
    return unsupported("has version {}; this build reads {}", header->version, kPromptCacheVersion);
  }
  return Status();
}

Status check_checksum(std::span<const uint8_t> bytes) {
  uint64_t checksum;
  const auto body = bytes.first(bytes.size() - kChecksumBytes);
  std::memcpy(&checksum, bytes.data() + body.size(), sizeof(checksum));
  if (prompt_cache_checksum(body) == checksum) return Status();
  return data_loss("is cut or damaged: its checksum does not match");
}

Status check_counts(const PromptCacheHeader& header) {
  const auto check = [](const char* name, int64_t value, int64_t max) {
    if (value >= 1 && value <= max) return Status();
    return data_loss("has {} {}; 1 to {} is possible", name, value, max);
  };
  LD_RETURN_IF_ERROR(check("num_points", header.num_points, kMaxRestorePoints));
  LD_RETURN_IF_ERROR(check("num_tokens", header.num_tokens, kMaxCount));
  LD_RETURN_IF_ERROR(check("num_layers", header.num_layers, kMaxLayers));
  LD_RETURN_IF_ERROR(check("vocab_size", header.vocab_size, kMaxCount));
  int64_t last = 0;
  for (int32_t i = 0; i < header.num_points; ++i) {
    const int64_t length = header.point_tokens[i];
    if (length <= last || length > header.num_tokens) {
      return data_loss("has the restore length {} after {}; ascending up to {} is possible", length,
                       last, header.num_tokens);
    }
    last = length;
  }
  return Status();
}

Result<KvFormat> read_format(const PromptCacheHeader& header) {
  KvFormat format;
  format.op = static_cast<Op>(header.op);
  format.keys = static_cast<KeyEncoding>(header.keys);
  format.dtype = static_cast<DType>(header.dtype);
  format.num_kv_heads = header.num_kv_heads;
  format.key_dim = header.key_dim;
  format.value_dim = header.value_dim;
  format.page_size = header.page_size;
  if (Status status = validate(format); !status.ok()) {
    return data_loss("has no valid format: {}", status.message());
  }
  if (format.op != Op::kGqa) return unsupported("has op {}; 0 is possible", header.op);
  return format;
}

// Takes the next num_bytes of *rest.
Result<std::span<const uint8_t>> take(std::span<const uint8_t>* rest, int64_t num_bytes) {
  if (num_bytes > static_cast<int64_t>(rest->size())) {
    return data_loss("is cut: {} more bytes are needed where {} are left", num_bytes, rest->size());
  }
  const auto part = rest->first(static_cast<size_t>(num_bytes));
  *rest = rest->subspan(part.size());
  return part;
}

const char* keys_name(KeyEncoding keys) {
  return keys == KeyEncoding::kPlain ? "plain (dense)" : "two-plane (ffd)";
}

}  // namespace

Result<PromptCache> PromptCache::open(const std::string& path) {
  LD_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::open(path));
  LD_ASSIGN_OR_RETURN(PromptCache cache, parse(mapping.bytes(), path));
  cache.mapping_ = std::move(mapping);  // the bytes stay where they are
  return cache;
}

Result<PromptCache> PromptCache::parse(std::span<const uint8_t> bytes, const std::string& name) {
  PromptCache cache;
  cache.name_ = name;
  const auto run = [&]() -> Status {
    PromptCacheHeader header;
    LD_RETURN_IF_ERROR(check_frame(bytes, &header));
    LD_RETURN_IF_ERROR(check_checksum(bytes));
    LD_RETURN_IF_ERROR(check_counts(header));
    LD_ASSIGN_OR_RETURN(cache.format_, read_format(header));
    cache.model_hash_ = header.model_hash;
    cache.num_layers_ = header.num_layers;
    cache.vocab_size_ = header.vocab_size;
    // Every token takes a byte or more per layer and head; within that no size below overflows.
    const auto num_bytes = static_cast<int64_t>(bytes.size());
    if (header.num_tokens > num_bytes / header.num_layers / header.num_kv_heads) {
      return data_loss("is cut: {} bytes for {} tokens in {} layers", num_bytes, header.num_tokens,
                       header.num_layers);
    }
    cache.tokens_.resize(static_cast<size_t>(header.num_tokens));
    const auto* lengths = header.point_tokens;
    return cache.parse_body(
        bytes.subspan(sizeof(header), bytes.size() - sizeof(header) - kChecksumBytes),
        std::vector<int64_t>(lengths, lengths + header.num_points));
  };
  LD_RETURN_IF_ERROR(in_context(fmt::format("prompt cache {}: ", name), run()));
  return cache;
}

Status PromptCache::parse_body(std::span<const uint8_t> body,
                               const std::vector<int64_t>& point_tokens) {
  const auto num_tokens = static_cast<int64_t>(tokens_.size());
  LD_ASSIGN_OR_RETURN(const auto ids, take(&body, num_tokens * 4));
  std::memcpy(tokens_.data(), ids.data(), ids.size());
  for (const int32_t id : tokens_) {
    if (id >= 0 && id < vocab_size_) continue;
    return data_loss("has token {}; 0 to {} is possible", id, vocab_size_ - 1);
  }
  for (const int64_t length : point_tokens) {
    Point point;
    point.num_tokens = length;
    LD_ASSIGN_OR_RETURN(point.logits, take(&body, int64_t{vocab_size_} * 4));
    LD_ASSIGN_OR_RETURN(point.rings, take(&body, ring_block_bytes(format_, num_layers_, length)));
    points_.push_back(point);
  }
  LD_ASSIGN_OR_RETURN(pages_, take(&body, page_block_bytes(format_, num_layers_, num_tokens)));
  if (!body.empty()) return data_loss("has {} bytes too many", body.size());
  return Status();
}

Status PromptCache::check_session(uint64_t model_hash, const Session& session) const {
  if (model_hash != model_hash_) {
    return invalid_argument("prompt cache {}: was made with another model (another file content)",
                            name_);
  }
  const KvCacheDesc& desc = session.cache().desc();
  const KvFormat& format = desc.format;
  if (format_.keys != format.keys) {
    return invalid_argument("prompt cache {}: holds {} keys; this run needs {}", name_,
                            keys_name(format_.keys), keys_name(format.keys));
  }
  if (format_.dtype != format.dtype) {
    return invalid_argument("prompt cache {}: holds type {}; this run needs {}", name_,
                            dtype_name(format_.dtype), dtype_name(format.dtype));
  }
  if (format_.page_size != format.page_size) {
    return invalid_argument("prompt cache {}: has page_size {}; this run needs {}", name_,
                            format_.page_size, format.page_size);
  }
  if (num_layers_ != desc.num_layers || format_.num_kv_heads != format.num_kv_heads ||
      format_.key_dim != format.key_dim || format_.value_dim != format.value_dim) {
    return data_loss("prompt cache {}: {} layers of {} x {} do not fit its model", name_,
                     num_layers_, format_.num_kv_heads, format_.key_dim);
  }
  return Status();
}

Result<const PromptCache::Point*> PromptCache::find_point(std::span<const int32_t> prompt) const {
  const auto differs = std::mismatch(tokens_.begin(), tokens_.end(), prompt.begin(), prompt.end());
  const auto num_same = static_cast<int64_t>(differs.first - tokens_.begin());
  const Point* best = nullptr;
  for (const Point& point : points_) {
    if (point.num_tokens <= num_same) best = &point;
  }
  if (best != nullptr) return best;
  const int64_t shortest = points_.front().num_tokens;
  if (num_same == static_cast<int64_t>(prompt.size())) {
    return invalid_argument("prompt cache {}: holds {} tokens; the prompt ends after {}", name_,
                            shortest, num_same);
  }
  return invalid_argument("prompt cache {}: the prompt differs from its {} tokens at token {}",
                          name_, shortest, num_same);
}

Result<int64_t> PromptCache::restore(std::span<const int32_t> prompt, uint64_t model_hash,
                                     Session* session) const {
  LD_RETURN_IF_ERROR(check_session(model_hash, *session));
  LD_ASSIGN_OR_RETURN(const Point* const point, find_point(prompt));
  std::vector<float> logits(static_cast<size_t>(vocab_size_));
  std::memcpy(logits.data(), point->logits.data(), point->logits.size());
  LD_RETURN_IF_ERROR(runner::restore(
      {point->num_tokens, logits, point->rings, static_cast<int64_t>(tokens_.size()), pages_},
      session));
  return point->num_tokens;
}

}  // namespace longdecode::runner
