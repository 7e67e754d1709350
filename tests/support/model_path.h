// Where tests find the real model.
#ifndef LONGDECODE_TESTS_SUPPORT_MODEL_PATH_H_
#define LONGDECODE_TESTS_SUPPORT_MODEL_PATH_H_

#include <cstdlib>
#include <filesystem>
#include <string>

namespace longdecode::tests {

// $LONGDECODE_MODEL, else the default model; "" when there is no such file. Tests run in the source
// directory.
inline std::string model_path() {
  const char* from_environment = std::getenv("LONGDECODE_MODEL");
  const std::string path =
      from_environment != nullptr ? from_environment : "models/SmolLM2-135M-Instruct.Q4_1.gguf";
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) ? path : std::string();
}

}  // namespace longdecode::tests

#endif  // LONGDECODE_TESTS_SUPPORT_MODEL_PATH_H_
