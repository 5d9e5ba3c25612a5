// Fully connected, the promises of the C interface: the same bits in any way of working, memory, refusals; and the
// first interface.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "fully_connected/fully_connected_test.h"
#include "openbnns/bnns/legacy.h"

namespace obn::fully_connected {

using namespace layer_test;

TEST(fully_connected_any_number_of_threads_gives_the_same_bits) {
  struct {
    size_t n, i, o;
  } const shapes[] = {{1, 1030, 770}, {7, 600, 500}, {40, 300, 200}, {64, 900, 10}, {8, 2500, 30}};
  for (const auto& shape : shapes) {
    for (BNNSDataLayout layout : {BNNSDataLayoutRowMajorMatrix, BNNSDataLayoutColumnMajorMatrix}) {
      std::vector<std::byte> first;
      for (size_t threads : {1, 2, 7}) {
        Setup s;
        s.n = shape.n;
        s.i = shape.i;
        s.o = shape.o;
        s.layout = layout;
        s.function = BNNSActivationFunctionTanh;
        s.threads = threads;
        obn_set_num_threads(threads);
        Random random{3};
        Layer layer(s, random);
        CHECK(layer.apply() == 0 && layer.apply_backward() == 0, "%s", obn_last_error());
        std::vector<std::byte> all;
        for (const Grid* grid : {&layer.y, &layer.dx, &layer.dw, &layer.db})
          all.insert(all.end(), grid->bytes.begin(), grid->bytes.end());
        if (threads == 1) first = all;
        CHECK(all == first, "%zu threads, (%zu, %zu, %zu)", threads, s.n, s.i, s.o);
      }
    }
  }
  obn_set_num_threads(0);
}

TEST(fully_connected_large_gradients_equal_small_ones) {
  // Beyond 16 MiB the gradient goes past the caches; rows that do not begin on a cache line too.
  Setup s;
  s.n = 2;
  s.i = 2303;
  s.o = 1900;
  s.shift = 3;
  Random random{4};
  Layer layer(s, random);
  CHECK(layer.apply_backward(false, true, false) == 0, "%s", obn_last_error());
  size_t wrong = 0;
  for (size_t o = 0; o < s.o; ++o) {
    for (size_t i = 0; i < s.i; ++i) {
      const double exact = layer.dy.get(0, o) * layer.x.get(0, i) + layer.dy.get(1, o) * layer.x.get(1, i);
      wrong += std::fabs(layer.dw.get(o, i) - exact) > 3e-7;
    }
  }
  CHECK(wrong == 0, "%zu values", wrong);
}

TEST(fully_connected_weights_are_copied_unless_the_client_keeps_them) {
  for (bool client : {false, true}) {
    Setup s;
    s.i = 3;
    s.o = 2;
    s.client = client;
    Random random{8};
    Layer layer(s, random);
    CHECK(layer.apply() == 0, "%s", obn_last_error());
    const double before = layer.y.get(0, 1);
    layer.w.set(1, 0, layer.w.get(1, 0) + 1.0);
    layer.b.set(0, 1, layer.b.get(0, 1) + 2.0);
    CHECK(layer.apply() == 0, "%s", obn_last_error());
    const double change = layer.y.get(0, 1) - before, expected = client ? layer.x.get(0, 0) + 2.0 : 0.0;
    CHECK(std::fabs(change - expected) < 1e-6, "client %d: %g, not %g", client, change, expected);
  }
}

TEST(fully_connected_memory_comes_from_the_caller_and_goes_back) {
  using ::obn::test::Memory;
  Setup s;
  s.n = 4;
  s.i = 30;
  s.o = 20;
  Random random{9};
  Layer layer(s, random);
  BNNSLayerParametersFullyConnected p = layer.parameters();
  const BNNSFilterParameters options = Memory::start();
  BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&p, &options);
  CHECK(filter && Memory::taken == 3 && Memory::returned == 0, "%zu blocks", Memory::taken);
  std::swap(filter, layer.filter);
  CHECK(layer.apply() == 0 && layer.apply_backward() == 0 && Memory::taken == 3, "a call took memory");
  std::swap(filter, layer.filter);
  BNNSFilterDestroy(filter);
  CHECK(Memory::returned == 3, "%zu released", Memory::returned);
  p.bias.size[0] = 19;
  CHECK(!BNNSFilterCreateLayerFullyConnected(&p, &options) && Memory::taken == Memory::returned,
        "failed creation keeps memory");
}

TEST(fully_connected_tells_its_memory) {
  Setup s;
  s.i = 100;
  s.o = 50;
  Random random{15};
  Layer plain(s, random);
  CHECK(obn_filter_work_bytes(plain.filter, 1) == 0, "float32 in, float32 out: nothing to keep");
  s.x_type = s.y_type = BNNSDataTypeFloat16;
  Layer halves(s, random);
  // Forward keeps x and y as float32; backward dy, x and dx.
  const size_t least = 3 * (2 * 100 + 50) * sizeof(float), got = obn_filter_work_bytes(halves.filter, 3);
  CHECK(got >= least && got <= least + 4 * kAlignment, "%zu bytes, not %zu", got, least);
  CHECK(obn_filter_work_bytes(halves.filter, SIZE_MAX / 64) == SIZE_MAX, "a batch that overflows");
}

TEST(fully_connected_refuses_what_cannot_be) {
  Setup s;
  s.n = 2;
  s.i = 6;
  s.o = 4;
  Random random{10};
  Layer layer(s, random);
  const auto refused = [&](auto change, const char* word) {
    BNNSLayerParametersFullyConnected p = layer.parameters();
    change(&p);
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&p, nullptr);
    CHECK(!filter && std::strstr(obn_last_error(), word), "%s: got %s", word, obn_last_error());
    BNNSFilterDestroy(filter);
  };
  using P = BNNSLayerParametersFullyConnected*;
  refused([](P p) { p->i_desc.size[0] = 5; }, "weights");
  refused([](P p) { p->o_desc.size[0] = 3; }, "weights");
  refused([](P p) { p->i_desc.size[0] = 0; }, "input");
  refused([](P p) { p->i_desc.layout = BNNSDataLayoutImageCHW; }, "input");
  refused([](P p) { p->o_desc.layout = BNNSDataLayoutRowMajorMatrix; }, "output");
  refused([](P p) { p->w_desc.layout = BNNSDataLayoutVector; }, "weights");
  refused([](P p) { p->w_desc.layout = BNNSDataLayoutFullyConnectedSparse; }, "weights");
  refused([](P p) { p->w_desc.data = nullptr; }, "weights");
  refused([](P p) { p->w_desc.data_type = BNNSDataTypeInt32; }, "weights");
  refused([](P p) { p->w_desc.data_type = BNNSDataTypeIndexed8; }, "weights");
  refused([](P p) { p->i_desc.data_type = BNNSDataTypeInt64; }, "input");
  refused([](P p) { p->o_desc.data_type = BNNSDataTypeInt8; }, "output");
  refused([](P p) { p->bias.size[0] = 5; }, "bias");
  refused([](P p) { p->activation.function = static_cast<BNNSActivationFunction>(99); }, "activation");
  refused([](P p) { p->activation.function = BNNSActivationFunctionGumbel; }, "activation");
  refused([](P p) { p->w_desc.size[0] = p->i_desc.size[0] = SIZE_MAX / 2; }, "input");
  CHECK(!BNNSFilterCreateLayerFullyConnected(nullptr, nullptr), "NULL");
}

TEST(fully_connected_failing_calls_leave_outputs_alone) {
  Setup s;
  s.n = 2;
  s.i = 6;
  s.o = 4;
  s.client = true;
  s.function = BNNSActivationFunctionSigmoid;
  Random random{12};
  Layer layer(s, random);
  BNNSNDArrayDescriptor dx = layer.dx.vector(), dy = layer.dy.vector(),
                        dw = layer.dw.matrix(s.layout), db = layer.db.vector();
  const std::vector<std::byte> y_was = layer.y.bytes, dx_was = layer.dx.bytes, dw_was = layer.dw.bytes,
                               db_was = layer.db.bytes, w_was = layer.w.bytes, x_was = layer.x.bytes;
  const auto untouched = [&](int status, const char* what) {
    CHECK(status == -1, "%s: succeeded", what);
    CHECK(layer.y.bytes == y_was && layer.dx.bytes == dx_was && layer.dw.bytes == dw_was && layer.db.bytes == db_was &&
              layer.w.bytes == w_was && layer.x.bytes == x_was,
          "%s: wrote", what);
  };
  void *x = layer.x.data(), *y = layer.y.data();
  const auto backward = [&](const void* in, const void* out) {
    return BNNSFilterApplyBackwardBatch(layer.filter, 2, in, 0, &dx, 0, out, 0, &dy, 0, &dw, &db);
  };
  untouched(BNNSFilterApplyBatch(layer.filter, 2, nullptr, 0, y, 0), "no input");
  untouched(BNNSFilterApplyBatch(layer.filter, 2, x, 0, nullptr, 0), "no output");
  untouched(BNNSFilterApplyBatch(layer.filter, 2, x, 0, x, 0), "output over input");
  untouched(BNNSFilterApplyBatch(layer.filter, 1, x, 0, layer.w.data(), 0), "output over weights");
  untouched(BNNSFilterApplyBatch(layer.filter, 2, x, 0, y, 3), "samples that overlap");
  untouched(BNNSFilterApplyBatch(layer.filter, SIZE_MAX / 2, x, 0, y, 0), "a batch that overflows");
  untouched(BNNSFilterApplyBatch(layer.filter, 2, static_cast<char*>(x) + 1, 0, y, 0), "unaligned input");
  untouched(backward(nullptr, y), "no input for the gradient of the weights");
  untouched(backward(x, nullptr), "no output for the activation");
  untouched(BNNSFilterApplyBackwardBatch(layer.filter, 2, x, 0, &dx, 0, y, 0, nullptr, 0, &dw, &db), "no grad_output");
  const auto broken = [&](BNNSNDArrayDescriptor* d, auto change, const char* what) {
    const BNNSNDArrayDescriptor good = *d;
    change();
    untouched(backward(x, y), what);
    *d = good;
  };
  broken(&dy, [&] { dy.size[0] = 3; }, "grad_output of another size");
  broken(&dx, [&] { dx.data = nullptr; }, "input_gradient without data");
  broken(&dx, [&] { dx.data = x; }, "input_gradient over input");
  broken(&dx, [&] { dx.data = layer.w.data(); }, "input_gradient over weights");
  broken(&dx, [&] { dx.data_type = BNNSDataTypeFloat16; }, "input_gradient of another type");
  broken(&dw, [&] { dw.layout = BNNSDataLayoutColumnMajorMatrix; }, "weights_gradient in another layout");
  broken(&dw, [&] { dw.data = layer.w.data(); }, "weights_gradient over weights");
  broken(&dw, [&] { dw.stride[1] = 3; }, "weights_gradient that overlaps itself");
  broken(&db, [&] { db.size[0] = 5; }, "bias_gradient of another size");
  broken(&db, [&] { db.data = layer.dw.data(); }, "bias_gradient over weights_gradient");
  broken(&db, [&] { db.data_type = BNNSDataTypeInt8; }, "bias_gradient of integers");
  CHECK(backward(x, y) == 0, "%s", obn_last_error());
  CHECK(BNNSFilterApplyBatch(layer.filter, 0, nullptr, 0, nullptr, 0) == 0, "an empty batch");

  // Of GELUApproximationSigmoid a negative output has two origins.
  s.function = BNNSActivationFunctionGELUApproximationSigmoid;
  Layer ambiguous(s, random);
  for (size_t o = 0; o < s.o; ++o)
    for (size_t n = 0; n < s.n; ++n) ambiguous.y.set(n, o, 0.5);
  CHECK(ambiguous.apply_backward() == 0, "%s", obn_last_error());
  ambiguous.y.set(1, 3, -0.1);
  const Grid before = ambiguous.dx;
  CHECK(ambiguous.apply_backward() == -1 && ambiguous.dx.bytes == before.bytes, "ambiguous output");
}

TEST(fully_connected_gradients_are_had_one_by_one) {
  for (size_t n : {2, 20}) {
    Setup s;
    s.n = n;
    s.i = 33;
    s.o = 21;
    Random first{13}, second{13};
    Layer all(s, first), parts(s, second);
    CHECK(all.apply_backward() == 0 && parts.apply_backward(true, false, false) == 0 &&
              parts.apply_backward(false, true, false) == 0 && parts.apply_backward(false, false, true) == 0 &&
              parts.apply_backward(false, false, false) == 0,
          "%s", obn_last_error());
    CHECK(all.dx.bytes == parts.dx.bytes && all.dw.bytes == parts.dw.bytes && all.db.bytes == parts.db.bytes, "N %zu",
          n);
  }
}

TEST(fully_connected_random_parameter_blocks_never_crash) {
  constexpr BNNSDataLayout kAll[] = {BNNSDataLayoutVector, BNNSDataLayout1DFirstMajor, BNNSDataLayoutRowMajorMatrix,
                                     BNNSDataLayoutColumnMajorMatrix, BNNSDataLayout2DFirstMajor,
                                     BNNSDataLayout2DLastMajor, BNNSDataLayoutFullyConnectedSparse,
                                     BNNSDataLayoutImageCHW, static_cast<BNNSDataLayout>(0x12345)};
  constexpr BNNSDataType kAllTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16,
                                        BNNSDataTypeInt8, BNNSDataTypeUInt16, BNNSDataTypeInt64, BNNSDataTypeIndexed4,
                                        BNNSDataTypeUInt1, BNNSDataTypeBoolean, static_cast<BNNSDataType>(0x10000)};
  std::vector<float> memory(1 << 14, 0.5f), x(1 << 12, 0.25f), y(1 << 12), dx(1 << 12), dw(1 << 12), db(1 << 12);
  Random random{14};
  size_t made = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    const size_t inputs = random.between(1, 4), outputs = random.between(1, 4);
    BNNSLayerParametersFullyConnected p = {};
    const BNNSDataLayout layout = kLayouts[random.below(4)];
    const bool slow_first = layout == BNNSDataLayoutColumnMajorMatrix || layout == BNNSDataLayout2DFirstMajor ||
                            layout == BNNSDataLayout2DLastMajor;
    p.i_desc = describe(BNNSDataLayoutVector, inputs, 0, BNNSDataTypeFloat32, nullptr);
    p.o_desc = describe(BNNSDataLayoutVector, outputs, 0, BNNSDataTypeFloat32, nullptr);
    p.w_desc = describe(layout, slow_first ? outputs : inputs, slow_first ? inputs : outputs, BNNSDataTypeFloat32,
                        memory.data());
    p.bias = describe(BNNSDataLayoutVector, outputs, 0, BNNSDataTypeFloat32, memory.data());
    BNNSNDArrayDescriptor* descriptors[] = {&p.i_desc, &p.o_desc, &p.w_desc, &p.bias};
    const size_t changes = random.below(3);
    for (size_t k = 0; k < changes; ++k) {
      BNNSNDArrayDescriptor& d = *descriptors[random.below(4)];
      constexpr size_t kHuge[] = {0, SIZE_MAX, SIZE_MAX / 2 + 1, size_t{1} << 40};
      switch (random.below(6)) {
        case 0: d.layout = kAll[random.below(9)]; break;
        case 1: d.data_type = kAllTypes[random.below(10)]; break;
        case 2: d.size[random.below(2)] = random.below(6); break;
        case 3: d.stride[random.below(2)] = random.below(7); break;
        case 4: (&d == &p.w_desc ? d.stride[7] : d.size[0]) = kHuge[random.below(4)]; break;
        default: d.data = random.coin() ? nullptr : reinterpret_cast<char*>(memory.data()) + random.below(4);
      }
    }
    p.activation.function = static_cast<BNNSActivationFunction>(random.below(38));
    BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&p, nullptr);
    if (!filter) {
      ++refused;
      continue;
    }
    ++made;
    const size_t n = random.between(1, 3);
    BNNSFilterApplyBatch(filter, n, x.data(), random.below(30), y.data(), random.below(30));
    BNNSNDArrayDescriptor dx_d = p.i_desc, dy_d = p.o_desc, dw_d = p.w_desc, db_d = p.bias;
    dx_d.data = dx.data();
    dy_d.data = x.data();
    dw_d.data = dw.data();
    db_d.data = db.data();
    BNNSFilterApplyBackwardBatch(filter, n, x.data(), random.below(30), &dx_d, random.below(30), y.data(),
                                 random.below(30), &dy_d, random.below(30), &dw_d, &db_d);
    BNNSFilterDestroy(filter);
  }
  CHECK(made > 500 && refused > 1000, "%zu made, %zu refused", made, refused);
}

// ---- the first interface ----

TEST(fully_connected_legacy_creator) {
  const int8_t w[] = {1, 2, 3, 4, 5, 6};
  const float b[] = {0.5f, -1};
  const float x[] = {1, 1, 1};
  float y[2] = {};
  const BNNSVectorDescriptor in = {3, BNNSDataTypeFloat32, 0, 0}, out = {2, BNNSDataTypeFloat32, 0, 0};
  BNNSFullyConnectedLayerParameters p = {};
  p.in_size = 3;
  p.out_size = 2;
  p.weights = {w, BNNSDataTypeInt8, 1.0f, 0.0f, nullptr};
  BNNSFilter filter = BNNSFilterCreateFullyConnectedLayer(&in, &out, &p, nullptr);
  CHECK(filter && BNNSFilterApply(filter, x, y) == 0 && y[0] == 6 && y[1] == 15, "%g %g", y[0], y[1]);
  BNNSFilterDestroy(filter);

  float table[256] = {};
  for (size_t i = 0; i < 256; ++i) table[i] = static_cast<float>(i) * 10.0f;
  p.weights = {w, BNNSDataTypeIndexed8, 0.0f, 0.0f, table};
  p.bias = {b, BNNSDataTypeFloat32, 0.0f, 0.0f, nullptr};
  p.activation.function = BNNSActivationFunctionClamp;
  p.activation.alpha = 0;
  p.activation.beta = 100;
  filter = BNNSFilterCreateFullyConnectedLayer(&in, &out, &p, nullptr);
  CHECK(filter && BNNSFilterApply(filter, x, y) == 0 && y[0] == 60.5f && y[1] == 100, "%g %g", y[0], y[1]);
  BNNSFilterDestroy(filter);

  p.in_size = 4;
  CHECK(!BNNSFilterCreateFullyConnectedLayer(&in, &out, &p, nullptr), "sizes that disagree");
  p.in_size = 3;
  p.weights.data = nullptr;
  CHECK(!BNNSFilterCreateFullyConnectedLayer(&in, &out, &p, nullptr), "no weights");
  CHECK(!BNNSFilterCreateFullyConnectedLayer(nullptr, &out, &p, nullptr) &&
            !BNNSFilterCreateFullyConnectedLayer(&in, nullptr, &p, nullptr) &&
            !BNNSFilterCreateFullyConnectedLayer(&in, &out, nullptr, nullptr),
        "NULL");
}

}  // namespace obn::fully_connected
