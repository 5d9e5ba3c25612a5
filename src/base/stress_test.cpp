// Filters that many threads share, while others are made and destroyed, numbers are drawn, failures are logged and the
// number of threads changes: `make stress` runs it under ThreadSanitizer, OPENBNNS_STRESS times as long. And the same
// filters in calls that are interrupted.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <thread>
#include <vector>

#include "base/interrupt.h"
#include "base/test.h"
#include "openbnns/openbnns.h"

namespace obn::test {
namespace {

constexpr size_t kBatch = 4, kChannels = 16, kSide = 20, kImage = kChannels * kSide * kSide;
constexpr size_t kFeatures = 400, kThreads = 6;

BNNSNDArrayDescriptor image(void* data = nullptr) {
  return array_of(BNNSDataLayoutImageCHW, {kSide, kSide, kChannels}, data);
}

std::vector<float> numbers(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<float> all(n);
  for (float& v : all) v = static_cast<float>(random.value());
  return all;
}

// What all threads read.
struct Inputs {
  std::vector<float> x = numbers(kBatch * kImage, 1), dy = numbers(kBatch * kImage, 2);
  std::vector<float> weights = numbers(9 * kChannels * kChannels, 3), matrix = numbers(kFeatures * kFeatures, 4);
  std::vector<float> ones = std::vector<float>(kChannels, 1.0f);
};

// What one thread writes.
struct Outputs {
  std::vector<float> y = std::vector<float>(kBatch * kImage), dx = y, dw = std::vector<float>(kFeatures * kFeatures);
  std::vector<float> other = y;
  bool operator==(const Outputs&) const = default;
};

// A filter and a forward and backward call on it.
struct Layer {
  const char* name;
  BNNSFilter filter;
  bool (*run)(BNNSFilter, Inputs&, Outputs&);
};

bool run_generic(BNNSFilter f, Inputs& in, Outputs& out, BNNSNDArrayDescriptor in_delta, BNNSNDArrayDescriptor out_delta,
                 BNNSNDArrayDescriptor* weights_delta, size_t size) {
  in_delta.data = out.dx.data();
  out_delta.data = in.dy.data();
  return BNNSFilterApplyBatch(f, kBatch, in.x.data(), size, out.y.data(), size) == 0 &&
         BNNSFilterApplyBackwardBatch(f, kBatch, in.x.data(), size, &in_delta, size, out.y.data(), size, &out_delta, size,
                                      weights_delta, nullptr) == 0;
}

bool run_activation(BNNSFilter f, Inputs& in, Outputs& out) {
  return run_generic(f, in, out, image(), image(), nullptr, kImage);
}

BNNSFilter make_activation(BNNSActivationFunction function) {
  BNNSLayerParametersActivation p = {};
  p.i_desc = p.o_desc = image();
  p.activation.function = function;
  p.axis_flags = function == BNNSActivationFunctionSoftmax ? 4 : 0;
  return BNNSFilterCreateLayerActivation(&p, nullptr);
}

BNNSFilter make_convolution(Inputs& in, size_t kernel, size_t groups, int winograd) {
  BNNSLayerParametersConvolution p = {};
  p.i_desc = p.o_desc = image();
  p.w_desc = array_of(BNNSDataLayoutConvolutionWeightsOIHW, {kernel, kernel, kChannels / groups, kChannels},
                      in.weights.data());
  p.x_stride = p.y_stride = 1;
  p.x_padding = p.y_padding = kernel / 2;
  p.groups = groups;
  BNNSFilter filter = BNNSFilterCreateLayerConvolution(&p, nullptr);
  obn_filter_set_winograd(filter, winograd);
  return filter;
}

template <size_t kernel, size_t groups>
bool run_convolution(BNNSFilter f, Inputs& in, Outputs& out) {
  auto dw = array_of(BNNSDataLayoutConvolutionWeightsOIHW, {kernel, kernel, kChannels / groups, kChannels},
                     out.dw.data());
  return run_generic(f, in, out, image(), image(), &dw, kImage);
}

BNNSFilter make_connected(Inputs& in) {
  BNNSLayerParametersFullyConnected p = {};
  p.i_desc = p.o_desc = vector_of(kFeatures);
  p.w_desc = array_of(BNNSDataLayoutRowMajorMatrix, {kFeatures, kFeatures}, in.matrix.data());
  p.activation.function = BNNSActivationFunctionTanh;
  return BNNSFilterCreateLayerFullyConnected(&p, nullptr);
}

bool run_connected(BNNSFilter f, Inputs& in, Outputs& out) {
  auto dw = array_of(BNNSDataLayoutRowMajorMatrix, {kFeatures, kFeatures}, out.dw.data());
  return run_generic(f, in, out, vector_of(kFeatures), vector_of(kFeatures), &dw, kFeatures);
}

BNNSFilter make_pooling() {
  BNNSLayerParametersPooling p = {};
  p.i_desc = p.o_desc = image();
  p.pooling_function = BNNSPoolingFunctionMax;
  p.k_width = p.k_height = 3;
  p.x_stride = p.y_stride = p.x_padding = p.y_padding = 1;
  return BNNSFilterCreateLayerPooling(&p, nullptr);
}

bool run_pooling(BNNSFilter f, Inputs& in, Outputs& out) {
  auto dx = image(out.dx.data()), dy = image(in.dy.data());
  return BNNSPoolingFilterApplyBatch(f, kBatch, in.x.data(), kImage, out.y.data(), kImage, nullptr, 0) == 0 &&
         BNNSPoolingFilterApplyBackwardBatch(f, kBatch, in.x.data(), kImage, &dx, kImage, out.y.data(), kImage, &dy,
                                             kImage, nullptr, nullptr, 0) == 0;
}

BNNSFilter make_product() {
  BNNSLayerParametersArithmetic p = {};
  BNNSArithmeticBinary fields = {};
  fields.in1 = fields.in2 = fields.out = image();
  fields.in1_type = fields.in2_type = fields.out_type = BNNSSample;
  p.arithmetic_function = BNNSArithmeticMultiply;
  p.arithmetic_function_fields = &fields;
  return BNNSFilterCreateLayerArithmetic(&p, nullptr);
}

bool run_product(BNNSFilter f, Inputs& in, Outputs& out) {
  const void* inputs[] = {in.x.data(), in.dy.data()};
  const size_t strides[] = {kImage, kImage};
  auto da = image(out.dx.data()), db = image(out.other.data()), dy = image(in.dy.data());
  BNNSNDArrayDescriptor* deltas[] = {&da, &db};
  return BNNSArithmeticFilterApplyBatch(f, kBatch, 2, inputs, strides, out.y.data(), kImage) == 0 &&
         BNNSArithmeticFilterApplyBackwardBatch(f, kBatch, 2, inputs, strides, deltas, strides, out.y.data(), kImage, &dy,
                                                kImage) == 0;
}

// Training keeps state, so every thread has its own.
BNNSFilter make_norm(Inputs& in) {
  BNNSLayerParametersNormalization p = {};
  p.i_desc = p.o_desc = image();
  p.beta_desc = p.gamma_desc = vector_of(kChannels, in.ones.data());
  p.epsilon = 1e-5f;
  return BNNSFilterCreateLayerNormalization(BNNSInstanceNorm, &p, nullptr);
}

bool run_norm(BNNSFilter f, Inputs& in, Outputs& out) {
  auto dx = image(out.dx.data()), dy = image(in.dy.data());
  auto beta = vector_of(kChannels, out.dw.data()), gamma = vector_of(kChannels, out.dw.data() + kChannels);
  return BNNSNormalizationFilterApplyBatch(f, kBatch, in.x.data(), kImage, out.y.data(), kImage, true) == 0 &&
         BNNSNormalizationFilterApplyBackwardBatch(f, kBatch, &dx, kImage, out.y.data(), kImage, &dy, kImage, &beta,
                                                   &gamma) == 0;
}

size_t rounds() {
  const char* text = std::getenv("OPENBNNS_STRESS");
  return text ? std::max<size_t>(1, std::strtoul(text, nullptr, 10)) : 1;
}

}  // namespace

namespace {

// One of each, shared by who uses them.
struct Layers {
  Inputs in;
  Layer all[9] = {
      {"tanh", make_activation(BNNSActivationFunctionTanh), run_activation},
      {"softmax", make_activation(BNNSActivationFunctionSoftmax), run_activation},
      {"Winograd", make_convolution(in, 3, 1, 1), run_convolution<3, 1>},
      {"3x3", make_convolution(in, 3, 1, 0), run_convolution<3, 1>},
      {"1x1", make_convolution(in, 1, 1, -1), run_convolution<1, 1>},
      {"depthwise", make_convolution(in, 3, kChannels, -1), run_convolution<3, kChannels>},
      {"fully connected", make_connected(in), run_connected},
      {"pooling", make_pooling(), run_pooling},
      {"product", make_product(), run_product},
  };
  std::vector<Outputs> expected = std::vector<Outputs>(std::size(all));
  Outputs normalized;

  Layers() {
    for (size_t k = 0; k < std::size(all); ++k)
      CHECK(all[k].filter && all[k].run(all[k].filter, in, expected[k]), "%s: %s", all[k].name, obn_last_error());
    BNNSFilter norm = make_norm(in);
    CHECK(norm && run_norm(norm, in, normalized), "%s", obn_last_error());
    BNNSFilterDestroy(norm);
  }
  ~Layers() {
    for (const Layer& layer : all) BNNSFilterDestroy(layer.filter);
  }
};

}  // namespace

TEST(stress_filters_shared_by_many_threads) {
  Layers shared;
  Inputs& in = shared.in;
  const auto& layers = shared.all;
  const std::vector<Outputs>& expected = shared.expected;
  const Outputs& normalized = shared.normalized;
  void* generator = BNNSCreateRandomGeneratorWithSeed(BNNSRandomGeneratorMethodAES_CTR, 1, nullptr);

  std::atomic<size_t> wrong{0}, told{0}, running{kThreads};
  const auto work = [&](size_t thread) {
    Random random(thread);
    for (size_t round = 0; round < 20 * rounds(); ++round) {
      const size_t k = random.below(std::size(layers));
      Outputs out;
      wrong += !layers[k].run(layers[k].filter, in, out) || !(out == expected[k]);
      Outputs own_out;
      BNNSFilter own = make_norm(in);
      wrong += !own || !run_norm(own, in, own_out) || !(own_out == normalized);
      BNNSFilterDestroy(own);
      wrong += BNNSFilterApply(own, in.x.data(), out.y.data()) != -1;  // destroyed: refused, and told to the log
      auto drawn = vector_of(out.y.size(), out.y.data());
      wrong += BNNSRandomFillUniformFloat(generator, &drawn, 0.0f, 1.0f) != 0;
      obn_set_log_callback([](const char*, void* user) { static_cast<std::atomic<size_t>*>(user)->fetch_add(1); }, &told);
      obn_set_seed(round);
    }
    running.fetch_sub(1);
  };
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
  for (size_t n = 0; running.load() > 0; ++n) {
    obn_set_num_threads(1 + n % 6);
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  obn_set_log_callback(nullptr, nullptr);
  obn_set_num_threads(0);
  CHECK(wrong == 0, "%zu calls", wrong.load());
  CHECK(told > 0, "nobody listened");
  BNNSDestroyRandomGenerator(generator);
}

namespace {

// Answers the questions of the calls on this thread: the one with this number with yes.
struct Interruption {
  size_t yes_at, asked = 0;
  bool (*also)(void*) = nullptr;  // what the callback does besides
  void* user = nullptr;
  bool went_well = true;

  explicit Interruption(size_t number) : yes_at(number) {
    set_eager_questions(true);
    obn_set_interrupt_callback(
        [](void* self) {
          auto* my = static_cast<Interruption*>(self);
          if (my->also) my->went_well = my->also(my->user) && my->went_well;
          return my->asked++ == my->yes_at ? 1 : 0;
        },
        this);
  }
  ~Interruption() {
    obn_set_interrupt_callback(nullptr, nullptr);
    set_eager_questions(false);
  }
};

}  // namespace

TEST(interrupted_calls_say_so_and_leave_all_usable) {
  for (size_t threads : {1, 3}) {
    obn_set_num_threads(threads);
    Layers shared;
    for (size_t k = 0; k < std::size(shared.all); ++k) {
      const Layer& layer = shared.all[k];
      size_t interrupted = 0;
      for (size_t number = 0; number < 40; number += 1 + number / 4) {
        Outputs out;
        bool is_done, is_asked;
        obn_clear_error();
        {
          Interruption interruption(number);
          is_done = layer.run(layer.filter, shared.in, out);
          is_asked = interruption.asked > number;
        }
        CHECK(is_done != is_asked, "%s, question %zu: asked %d, done %d", layer.name, number, is_asked, is_done);
        CHECK(is_done || std::strcmp(obn_last_error(), "interrupted: outputs are incomplete") == 0, "%s: %s", layer.name,
              obn_last_error());
        CHECK(!is_done || out == shared.expected[k], "%s: asked and not interrupted", layer.name);
        interrupted += !is_done;
        Outputs again;
        CHECK(layer.run(layer.filter, shared.in, again) && again == shared.expected[k], "%s after question %zu: %s",
              layer.name, number, obn_last_error());
      }
      CHECK(interrupted > 0, "%s never asks", layer.name);
    }
  }
  obn_set_num_threads(0);
}

TEST(interrupted_training_forgets_and_keeps_its_statistics) {
  Inputs in;
  std::vector<float> mean(kChannels, 0.25f), variance(kChannels, 0.5f);
  BNNSLayerParametersNormalization p = {};
  p.i_desc = p.o_desc = image();
  p.beta_desc = p.gamma_desc = vector_of(kChannels, in.ones.data());
  p.moving_mean_desc = vector_of(kChannels, mean.data());
  p.moving_variance_desc = vector_of(kChannels, variance.data());
  p.epsilon = 1e-5f;
  BNNSFilterParameters options = {};
  options.flags = BNNSFlagsUseClientPtr;
  BNNSFilter filter = BNNSFilterCreateLayerNormalization(BNNSBatchNorm, &p, &options);
  CHECK(filter, "%s", obn_last_error());
  Outputs out;
  const auto train = [&] {
    return BNNSNormalizationFilterApplyBatch(filter, kBatch, in.x.data(), kImage, out.y.data(), kImage, true);
  };
  size_t times = 0;
  for (bool is_interrupted = true; is_interrupted && times < 1000; ++times) {
    const std::vector<float> mean_before = mean, variance_before = variance;
    {
      Interruption interruption(times);
      is_interrupted = train() != 0;
    }
    if (!is_interrupted) break;
    CHECK(mean == mean_before && variance == variance_before, "question %zu: statistics are half-way", times);
    auto dx = image(out.dx.data()), dy = image(in.dy.data());
    CHECK(BNNSNormalizationFilterApplyBackwardBatch(filter, kBatch, &dx, kImage, out.y.data(), kImage, &dy, kImage,
                                                    nullptr, nullptr) == -1 &&
              failed_with("filter: expected an apply in training mode"),
          "%s", obn_last_error());
  }
  CHECK(times > 0 && times < 1000 && mean[0] != 0.25f, "interrupted %zu times", times);
  CHECK(run_norm(filter, in, out), "%s", obn_last_error());
  BNNSFilterDestroy(filter);
}

TEST(an_interrupt_callback_may_use_other_filters) {
  obn_set_num_threads(3);
  Layers shared;
  for (size_t k = 0; k < std::size(shared.all); ++k) {
    Outputs out;
    Interruption interruption(SIZE_MAX);
    interruption.user = &shared;
    interruption.also = [](void* user) {  // a product of matrices and a Winograd convolution: scratch and workspace
      auto* my = static_cast<Layers*>(user);
      for (size_t i : {size_t{2}, size_t{6}}) {
        Outputs own;
        if (!my->all[i].run(my->all[i].filter, my->in, own) || !(own == my->expected[i])) return false;
      }
      return true;
    };
    CHECK(shared.all[k].run(shared.all[k].filter, shared.in, out) && out == shared.expected[k], "%s: %s",
          shared.all[k].name, obn_last_error());
    CHECK(interruption.asked > 0 && interruption.went_well, "%s: the callback's own calls", shared.all[k].name);
  }
  obn_set_num_threads(0);
}

}  // namespace obn::test
