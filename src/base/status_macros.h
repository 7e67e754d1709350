// Early return on a bad Status or Result.
#ifndef LONGDECODE_BASE_STATUS_MACROS_H_
#define LONGDECODE_BASE_STATUS_MACROS_H_

#include "longdecode/status.h"

#define LD_RETURN_IF_ERROR(expr)                                                    \
  do {                                                                              \
    if (::longdecode::Status ld_status = (expr); !ld_status.ok()) return ld_status; \
  } while (false)

#define LD_CONCAT_INNER(a, b) a##b
#define LD_CONCAT(a, b) LD_CONCAT_INNER(a, b)
// LD_ASSIGN_OR_RETURN(auto x, f()): x is the value of the Result that f returns.
#define LD_ASSIGN_OR_RETURN(lhs, expr) LD_ASSIGN_IMPL(LD_CONCAT(ld_result_, __LINE__), lhs, expr)
#define LD_ASSIGN_IMPL(result, lhs, expr)   \
  auto result = (expr);                     \
  if (!result.ok()) return result.status(); \
  lhs = std::move(result).value()

#endif  // LONGDECODE_BASE_STATUS_MACROS_H_
