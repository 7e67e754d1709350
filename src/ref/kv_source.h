// Keys and values of one sequence by logical token, whatever holds them.
#ifndef LONGDECODE_REF_KV_SOURCE_H_
#define LONGDECODE_REF_KV_SOURCE_H_

#include <cstdint>
#include <vector>

#include "longdecode/attention.h"

namespace longdecode::ref {

// A view as doubles, row-major, whatever its strides and dtype.
std::vector<double> read_tensor(const TensorView& view);

class KvSource {
 public:
  virtual ~KvSource() = default;
  virtual int64_t kv_len() const = 0;
  virtual int32_t num_kv_heads() const = 0;
  virtual int32_t key_dim() const = 0;
  virtual int32_t value_dim() const = 0;
  // Writes key_dim() (value_dim()) elements.
  virtual void key(int32_t kv_head, int64_t token, double* row) const = 0;
  virtual void value(int32_t kv_head, int64_t token, double* row) const = 0;
};

// Plain arrays [kv_len, num_kv_heads, dim], e.g. the original keys before any format.
class ArraySource : public KvSource {
 public:
  // v may be nullptr: V is then the first value_dim channels of the key (MLA).
  ArraySource(const float* k, const float* v, int64_t kv_len, int32_t num_kv_heads, int32_t key_dim,
              int32_t value_dim)
      : k_(k),
        v_(v),
        kv_len_(kv_len),
        num_kv_heads_(num_kv_heads),
        key_dim_(key_dim),
        value_dim_(value_dim) {}
  int64_t kv_len() const override { return kv_len_; }
  int32_t num_kv_heads() const override { return num_kv_heads_; }
  int32_t key_dim() const override { return key_dim_; }
  int32_t value_dim() const override { return value_dim_; }
  void key(int32_t kv_head, int64_t token, double* row) const override;
  void value(int32_t kv_head, int64_t token, double* row) const override;

 private:
  const float* k_;
  const float* v_;
  int64_t kv_len_;
  int32_t num_kv_heads_;
  int32_t key_dim_;
  int32_t value_dim_;
};

// Sequence batch_idx of a paged layer: the stored keys, i.e. plain rows, or the exact value of both
// planes for quantised tokens and the ring for the rest.
class PagedSource : public KvSource {
 public:
  PagedSource(const KvLayerView& kv, const BatchView& batch, int32_t batch_idx);
  int64_t kv_len() const override { return kv_len_; }
  int32_t num_kv_heads() const override { return kv_.format.num_kv_heads; }
  int32_t key_dim() const override { return kv_.format.key_dim; }
  int32_t value_dim() const override { return kv_.format.value_dim; }
  void key(int32_t kv_head, int64_t token, double* row) const override;
  void value(int32_t kv_head, int64_t token, double* row) const override;

  const KvFormat& format() const { return kv_.format; }
  // Tokens whose key is in the planes; 0 for a plain layer.
  int64_t num_quantized_tokens() const { return num_quantized_tokens_; }
  // The 2-bit value of a quantised token's key.
  void scan_key(int32_t kv_head, int64_t token, double* row) const;
  // The 2-bit steps of the page that holds a quantised token.
  void steps(int32_t kv_head, int64_t token, double* row) const;

 private:
  int64_t page_id(int64_t token) const;
  const uint8_t* chunk(int32_t kv_head, int64_t token) const;

  KvLayerView kv_;
  const int32_t* block_table_ = nullptr;
  int64_t kv_len_ = 0;
  int64_t num_quantized_tokens_ = 0;
  int32_t slot_ = 0;
};

}  // namespace longdecode::ref

#endif  // LONGDECODE_REF_KV_SOURCE_H_
