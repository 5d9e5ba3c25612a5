// What filters say about themselves, and the line of a call.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/describe.h"
#include "base/filter.h"
#include "base/test.h"
#include "openbnns/bnns.h"
#include "openbnns/openbnns.h"

using namespace obn;

namespace {

constexpr auto kImage = BNNSDataLayoutImageCHW;

std::string described(BNNSFilter filter, size_t batch = 1) {
  const int length = obn_filter_describe(filter, batch, nullptr, 0);
  CHECK(length > 0, "%s", obn_last_error());
  std::string text(static_cast<size_t>(length) + 1, '\0');
  CHECK(obn_filter_describe(filter, batch, text.data(), text.size()) == length, "%s", obn_last_error());
  text.pop_back();
  CHECK(std::strlen(text.c_str()) == text.size(), "%s", text.c_str());
  return text;
}

// The value of a key; "" where there is none.
std::string value_of(const std::string& text, const std::string& key) {
  const size_t at = (" " + text).find(" " + key + "=");
  if (at == std::string::npos) return "";
  const size_t start = at + key.size() + 1;
  return text.substr(start, text.find(' ', start) - start);
}

std::string call_of(BNNSFilter filter, Pass pass, size_t batch, int status) {
  char text[256];
  const int length = describe_call(*find_filter(filter), pass, batch, status, 1.5, text, sizeof text);
  CHECK(length > 0 && static_cast<size_t>(length) == std::strlen(text), "%d: %s", length, text);
  return text;
}

struct Convolution {
  std::vector<float> weights;
  BNNSFilter filter;

  Convolution(size_t in, size_t out, size_t kernel, size_t groups, size_t stride = 1, bool transposed = false)
      : weights(in / groups * out * kernel * kernel, 0.5f) {
    BNNSLayerParametersConvolution p = {};
    const size_t large = 12, small = (large - kernel) / stride + 1;
    p.i_desc = array_of(kImage, {transposed ? small : large, transposed ? small : large, in}, nullptr);
    p.o_desc = array_of(kImage, {transposed ? large : small, transposed ? large : small, out}, nullptr);
    p.w_desc = array_of(BNNSDataLayoutConvolutionWeightsOIHW, {kernel, kernel, in / groups, out}, weights.data());
    p.groups = groups;
    p.x_stride = p.y_stride = stride;
    filter = transposed ? BNNSFilterCreateLayerTransposedConvolution(&p, nullptr)
                        : BNNSFilterCreateLayerConvolution(&p, nullptr);
    CHECK(filter, "%s", obn_last_error());
  }
  ~Convolution() { BNNSFilterDestroy(filter); }
};

BNNSFilter make_pooling(size_t width) {
  BNNSLayerParametersPooling p = {};
  p.i_desc = array_of(kImage, {2 * width, 8, 3}, nullptr);
  p.o_desc = array_of(kImage, {width, 4, 3}, nullptr);
  p.pooling_function = BNNSPoolingFunctionMax;
  p.k_width = p.k_height = p.x_stride = p.y_stride = 2;
  return BNNSFilterCreateLayerPooling(&p, nullptr);
}

}  // namespace

TEST(describe_convolution_names_its_algorithms) {
  const Convolution wide(16, 16, 3, 1), depthwise(16, 16, 3, 16), transposed(16, 16, 5, 1, 1, true);
  CHECK(obn_filter_set_winograd(wide.filter, 1) == 0, "%s", obn_last_error());
  const std::string with = described(wide.filter);
  CHECK(obn_filter_set_winograd(wide.filter, 0) == 0, "%s", obn_last_error());
  const std::string without = described(wide.filter);
  for (const char* pass : {"forward", "input_gradient", "weight_gradient"}) {
    CHECK(value_of(with, pass) == "winograd", "%s", with.c_str());
    CHECK(value_of(without, pass) == "direct", "%s", without.c_str());
    CHECK(value_of(described(depthwise.filter), pass) == "depthwise", "%s", described(depthwise.filter).c_str());
  }
  CHECK(value_of(with, "family") == "convolution" && value_of(with, "backward") == "", "%s", with.c_str());
  CHECK(value_of(with, "input") == "16x12x12:float32" && value_of(with, "output") == "16x10x10:float32", "%s",
        with.c_str());
  const std::string other = described(transposed.filter);
  CHECK(value_of(other, "family") == "transposed_convolution" && value_of(other, "forward") == "direct", "%s",
        other.c_str());
}

TEST(describe_says_what_a_call_uses) {
  const Convolution layer(16, 16, 3, 1);
  const std::string text = described(layer.filter, 5);
  CHECK(value_of(text, "target") == obn_isa(), "%s", text.c_str());
  CHECK(value_of(text, "threads") == std::to_string(obn_get_num_threads()), "%s", text.c_str());
  CHECK(value_of(text, "batch") == "5", "%s", text.c_str());
  CHECK(value_of(text, "workspace_bytes") == std::to_string(obn_filter_work_bytes(layer.filter, 5)), "%s", text.c_str());
  CHECK(value_of(text, "saved_bytes") == "0", "%s", text.c_str());

  float one[3] = {1.0f, 1.0f, 1.0f};
  BNNSLayerParametersNormalization p = {};
  p.i_desc = p.o_desc = array_of(kImage, {4, 4, 3}, nullptr);
  p.beta_desc = p.gamma_desc = p.moving_mean_desc = p.moving_variance_desc = vector_of(3, one);
  p.epsilon = 1e-5f;
  p.moving_mean_desc.data = p.moving_variance_desc.data = nullptr;
  BNNSFilterParameters one_thread = {};
  one_thread.n_threads = 1;
  BNNSFilter norm = BNNSFilterCreateLayerNormalization(BNNSInstanceNorm, &p, &one_thread);
  CHECK(norm, "%s", obn_last_error());
  const std::string of_norm = described(norm, 2);
  CHECK(value_of(of_norm, "kind") == "instance_norm" && value_of(of_norm, "backward") == "kernels", "%s",
        of_norm.c_str());
  CHECK(value_of(of_norm, "threads") == "1", "%s", of_norm.c_str());
  CHECK(value_of(of_norm, "saved_bytes") == std::to_string(obn_filter_kept_bytes(norm, 2)) &&
            value_of(of_norm, "saved_bytes") != "0",
        "%s", of_norm.c_str());
  BNNSFilterDestroy(norm);
}

TEST(describe_writes_no_further_than_it_may) {
  BNNSFilter filter = make_pooling(4);
  CHECK(filter, "%s", obn_last_error());
  const std::string whole = described(filter);
  const int length = static_cast<int>(whole.size());
  for (size_t capacity : {size_t{1}, size_t{2}, size_t{20}, whole.size(), whole.size() + 1, whole.size() + 9}) {
    std::vector<char> text(capacity + 4, '#');
    CHECK(obn_filter_describe(filter, 1, text.data(), capacity) == length, "capacity %zu", capacity);
    const size_t written = capacity <= whole.size() ? capacity - 1 : whole.size();
    CHECK(std::strlen(text.data()) == written && whole.compare(0, written, text.data()) == 0, "capacity %zu: %s",
          capacity, text.data());
    CHECK(text[written + 1] == '#', "capacity %zu", capacity);
  }
  char text[] = "as it was";
  CHECK(obn_filter_describe(filter, 1, nullptr, 1) == -1 && failed_with("text: "), "%s", obn_last_error());
  CHECK(obn_filter_describe(nullptr, 1, text, sizeof text) == -1 && failed_with("filter: "), "%s", obn_last_error());
  BNNSFilterDestroy(filter);
  CHECK(obn_filter_describe(filter, 1, text, sizeof text) == -1 && failed_with("filter: "), "%s", obn_last_error());
  CHECK(obn_filter_describe(filter, 1, nullptr, 0) == -1, "a dead handle was described");
  const Convolution layer(16, 16, 3, 1);
  CHECK(obn_filter_describe(layer.filter, SIZE_MAX / 8, text, sizeof text) == -1, "too many samples were described");
  CHECK(std::strcmp(text, "as it was") == 0, "%s", text);
}

TEST(describe_a_call) {
  BNNSFilter filter = make_pooling(4);
  CHECK(filter, "%s", obn_last_error());
  std::string line = call_of(filter, Pass::forward, 7, 0);
  CHECK(line == "openbnns,pooling:max,forward,in_place,batch7_3x8x8:float32->3x4x4:float32,1.5000", "%s", line.c_str());
  line = call_of(filter, Pass::backward, 0, -1);
  CHECK(line == "openbnns,pooling:max,backward,push_2x2_maxima,batch0_3x8x8:float32->3x4x4:float32,failed", "%s", line.c_str());
  BNNSFilterDestroy(filter);

  const Convolution layer(16, 16, 3, 1);
  CHECK(obn_filter_set_winograd(layer.filter, 0) == 0, "%s", obn_last_error());
  line = call_of(layer.filter, Pass::backward, 1, 0);
  CHECK(line == "openbnns,convolution,backward,direct,batch1_16x12x12:float32->16x10x10:float32,1.5000", "%s",
        line.c_str());
}
