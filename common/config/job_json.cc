#include "common/config/job_json.h"

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "common/config/config_check.h"
#include "common/config/job_fields.h"
#include "common/config/shallow_json.h"
#include "common/math/encoding.h"

namespace tributary {
namespace {

using nlohmann::json;  // objects are std::map: keys come out sorted

constexpr std::size_t kShown = 80;  // characters of a peer's value in a message

// The machine's key, which never travels.
bool local_only(std::string_view section, std::string_view key) {
  return section == "train" && key == "data_dir";
}

// Never throws on odd bytes: bytes that are no UTF-8 are replaced.
std::string compact(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string shown(const json& value) {
  std::string text = compact(value);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

struct Writer {
  json root = json::object();

  template <class T>
  void operator()(std::string_view section, std::string_view key, const T& value) {
    if (!local_only(section, key)) root[std::string(section)][std::string(key)] = value;
  }
  void operator()(std::string_view section, std::string_view key, EncodingSpec spec) {
    (*this)(section, key, make_encoding(spec)->name());
  }
  template <IsChoice Choice>
  void operator()(std::string_view section, std::string_view key, const Choice& choice) {
    (*this)(section, key, word(choice));
  }
};

class Reader {
 public:
  explicit Reader(const json& root) : root_(root) {}

  void operator()(std::string_view section, std::string_view key, std::string& out) {
    const json* v = look_up(section, key);
    if (!v) return;
    if (v->is_string()) {
      out = v->get<std::string>();
    } else {
      refuse(section, key, *v, "must be a string");
    }
  }
  void operator()(std::string_view section, std::string_view key, bool& out) {
    const json* v = look_up(section, key);
    if (!v) return;
    if (v->is_boolean()) {
      out = v->get<bool>();
    } else {
      refuse(section, key, *v, "must be true or false");
    }
  }
  template <class T>
  requires std::is_unsigned_v<T>
  void operator()(std::string_view section, std::string_view key, T& out) {
    const json* v = look_up(section, key);
    if (!v) return;
    if (v->is_number_unsigned() && v->get<std::uint64_t>() <= std::numeric_limits<T>::max()) {
      out = v->get<T>();
    } else {
      refuse(section, key, *v, "must be a whole number from 0 to " + std::to_string(std::numeric_limits<T>::max()));
    }
  }
  void operator()(std::string_view section, std::string_view key, double& out) {
    const json* v = look_up(section, key);
    if (!v) return;
    if (v->is_number()) {
      out = v->get<double>();
    } else {
      refuse(section, key, *v, "must be a number");
    }
  }
  void operator()(std::string_view section, std::string_view key, std::vector<std::uint32_t>& out) {
    const json* v = look_up(section, key);
    if (!v) return;
    std::vector<std::uint32_t> values;
    bool ok = v->is_array();
    for (std::size_t i = 0; ok && i < v->size(); ++i) {
      const json& element = (*v)[i];
      ok = element.is_number_unsigned() && element.get<std::uint64_t>() <= std::numeric_limits<std::uint32_t>::max();
      if (ok) values.push_back(element.get<std::uint32_t>());
    }
    if (ok) {
      out = std::move(values);
    } else {
      refuse(section, key, *v, "must be an array of whole numbers");
    }
  }
  void operator()(std::string_view section, std::string_view key, EncodingSpec& out) {
    const json* v = look_up(section, key);
    if (!v) return;
    const std::optional<EncodingSpec> spec =
        v->is_string() ? parse_encoding(v->get_ref<const std::string&>()) : std::nullopt;
    if (spec) {
      out = *spec;
    } else {
      refuse(section, key, *v, "must be one of " + encodings_for(key));
    }
  }

  template <IsChoice Choice>
  void operator()(std::string_view section, std::string_view key, Choice& out) {
    std::string text = word(out);
    (*this)(section, key, text);
    const std::optional<Choice> choice = choice_of<Choice>(text);
    if (choice) out = *choice;
    if (!choice) refuse(section, key, text, must_be_one_of(words_of(out)));
  }

  // How many of the sections "name[0]", "name[1]" ... there are.
  std::size_t tables(std::string_view name) const {
    std::size_t count = 0;
    while (root_.contains(std::string(name) + "[" + std::to_string(count) + "]")) ++count;
    return count;
  }

  // After all reads: the first complaint in the order of the reads, then unknown keys.
  std::optional<std::string> complaint() const {
    if (!complaint_.empty()) return complaint_;
    for (const auto& [section, keys] : root_.items()) {
      const auto known = known_.find(section);
      if (known == known_.end()) return "unknown section " + shown(section);
      if (!keys.is_object()) return section + " = " + shown(keys) + ": must be an object";
      for (const auto& [key, value] : keys.items()) {
        if (!known->second.contains(key)) return "unknown key " + shown(key) + " in " + section;
      }
    }
    return std::nullopt;
  }

 private:
  const json* look_up(std::string_view section, std::string_view key) {
    if (local_only(section, key)) return nullptr;
    known_[std::string(section)].insert(std::string(key));
    const auto object = root_.find(std::string(section));
    if (object == root_.end() || !object->is_object()) return nullptr;
    const auto value = object->find(std::string(key));
    return value == object->end() ? nullptr : &*value;
  }
  void refuse(std::string_view section, std::string_view key, const json& value, const std::string& message) {
    if (complaint_.empty()) complaint_ = dotted_key(section, key) + " = " + shown(value) + ": " + message;
  }

  const json& root_;
  std::map<std::string, std::set<std::string>> known_;
  std::string complaint_;
};

json to_json(const JobConfig& config) {
  Writer writer;
  visit_job_fields(config, writer);
  return std::move(writer.root);
}

// Returns the first difference in keys for which `ignored` is false, in a sentence.
std::string first_difference(const JobConfig& ours, const JobConfig& theirs, bool (*ignored)(std::string_view dotted)) {
  if (ours.groups.size() != theirs.groups.size()) {
    return "the job has " + std::to_string(ours.groups.size()) + " [[groups]], but your configuration has " +
           std::to_string(theirs.groups.size()) + "; use the same groups everywhere, or give a different job another " +
           "job.name";
  }
  const json a = to_json(ours), b = to_json(theirs);
  for (const auto& [section, keys] : a.items()) {
    for (const auto& [key, value] : keys.items()) {
      const std::string dotted = dotted_key(section, key);
      const json& other = b.at(section).at(key);
      if (ignored(dotted) || compact(value) == compact(other)) continue;
      return dotted + " is " + shown(value) + " in the job, but " + shown(other) +
             " in your configuration; use the same job file everywhere, or give a different job another job.name";
    }
  }
  return "";
}

}  // namespace

std::string to_canonical_json(const JobConfig& config) {
  return compact(to_json(config));
}

Result<JobConfig> job_from_json(std::string_view text) {
  if (text.size() > kMaxJobJson) {
    return fail(ErrorCode::kMalformed, "a job configuration of " + std::to_string(text.size()) +
                                           " bytes; the limit is " + std::to_string(kMaxJobJson));
  }
  const Result<json> root = shallow_json_object(text);
  if (!root) {
    return fail(ErrorCode::kMalformed,
                "a job configuration that is no JSON object; it must be what to_canonical_json() writes");
  }
  JobConfig config;
  Reader reader(*root);
  visit_job_fields(config, reader);
  if (const std::optional<std::string> complaint = reader.complaint()) {
    return fail(ErrorCode::kConfig, "job configuration: " + *complaint);
  }
  const json values = to_json(config);
  for (const Fault& fault : faults_of(config)) {
    const std::size_t dot = fault.key.find('.');
    const json& value = values.at(fault.key.substr(0, dot)).at(fault.key.substr(dot + 1));
    return fail(ErrorCode::kConfig, "job configuration: " + fault.key + " = " + shown(value) + ": " + fault.message);
  }
  return config;
}

bool is_ignorable_key(std::string_view dotted) {
  return dotted == "train.epochs" || dotted == "train.max_rounds" || dotted == "train.eval_every_epochs" ||
         dotted == "train.data_dir" || dotted.starts_with("snapshot.") || dotted.starts_with("checkpoint.") ||
         dotted.starts_with("recovery.") || dotted.starts_with("membership.");
}

std::string describe_config_difference(const JobConfig& ours, const JobConfig& theirs) {
  return first_difference(ours, theirs, is_ignorable_key);
}

std::string describe_any_config_difference(const JobConfig& ours, const JobConfig& theirs) {
  return first_difference(ours, theirs, [](std::string_view) { return false; });
}

// Compares the structs, so that a record written before a key existed compares equal to that key's default.
std::string describe_config_difference(std::string_view ours_json, std::string_view theirs_json) {
  const Result<JobConfig> ours = job_from_json(ours_json), theirs = job_from_json(theirs_json);
  if (!ours) return "the job's own configuration cannot be read: " + ours.error().message;
  if (!theirs) return "your configuration cannot be read: " + theirs.error().message;
  return describe_config_difference(*ours, *theirs);
}

}  // namespace tributary
