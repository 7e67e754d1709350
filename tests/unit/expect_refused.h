#ifndef LONGDECODE_TESTS_UNIT_EXPECT_REFUSED_H_
#define LONGDECODE_TESTS_UNIT_EXPECT_REFUSED_H_

#include <gtest/gtest.h>

#include <string>

#include "longdecode/status.h"

namespace longdecode::test {

// A status of this code whose message holds `part`.
inline void expect_refused(const Status& status, StatusCode code, const std::string& part) {
  EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(code)) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos)
      << "\"" << status.message() << "\" does not say \"" << part << "\"";
}

}  // namespace longdecode::test

#endif  // LONGDECODE_TESTS_UNIT_EXPECT_REFUSED_H_
