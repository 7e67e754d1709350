// Size arithmetic that cannot overflow silently.
#ifndef LONGDECODE_CACHE_CHECKED_MATH_H_
#define LONGDECODE_CACHE_CHECKED_MATH_H_

#include <cstdint>

namespace longdecode {

// An int64 that remembers whether any step that led to it overflowed.
class CheckedSize {
 public:
  CheckedSize(int64_t value) : value_(value) {}  // NOLINT: implicit

  CheckedSize& operator*=(CheckedSize other) {
    overflowed_ |= other.overflowed_ | __builtin_mul_overflow(value_, other.value_, &value_);
    return *this;
  }
  CheckedSize& operator+=(CheckedSize other) {
    overflowed_ |= other.overflowed_ | __builtin_add_overflow(value_, other.value_, &value_);
    return *this;
  }
  friend CheckedSize operator*(CheckedSize a, CheckedSize b) { return a *= b; }
  friend CheckedSize operator+(CheckedSize a, CheckedSize b) { return a += b; }

  bool overflowed() const { return overflowed_; }
  int64_t value() const { return value_; }  // meaningless when overflowed()

  // Rounded up to a multiple of a power of two.
  CheckedSize aligned(int64_t alignment) const {
    CheckedSize result = *this + (alignment - 1);
    result.value_ &= ~(alignment - 1);
    return result;
  }

 private:
  int64_t value_;
  bool overflowed_ = false;
};

}  // namespace longdecode

#endif  // LONGDECODE_CACHE_CHECKED_MATH_H_
