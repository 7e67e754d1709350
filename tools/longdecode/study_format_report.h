// What `study-format` writes: tables of the study's means as columns and rows.
#ifndef LONGDECODE_TOOLS_STUDY_FORMAT_REPORT_H_
#define LONGDECODE_TOOLS_STUDY_FORMAT_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/study/study.h"

namespace longdecode::tool {

struct StudyFacts {
  std::string model_path;
  std::string model_name;
  std::vector<std::string> text_paths;
  int64_t context_len = 0;
  int64_t num_positions = 0;
  uint64_t seed = 0;
};

// One JSON object; docs/formats/key-format-study.md explains the columns.
std::string study_json(const StudyFacts& facts, const std::vector<study::LayerResult>& layers);

// A few lines for people: every grid with page 128, tile 16, no margin, delta 5.
std::string study_table(const std::vector<study::LayerResult>& layers);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_STUDY_FORMAT_REPORT_H_
