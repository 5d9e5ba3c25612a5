// Fully connected with sparse weights: the recorded vector, dense layers with the same weights, refusals.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fully_connected/fully_connected_test.h"

namespace obn::fully_connected {

using namespace layer_test;

namespace {

// A layer with the packed weights `w`; the caller destroys it.
BNNSFilter create_sparse(const BNNSNDArrayDescriptor& w, size_t inputs, size_t outputs, uint32_t flags = 0) {
  BNNSLayerParametersFullyConnected p = {};
  p.i_desc = describe(BNNSDataLayoutVector, inputs, 0, BNNSDataTypeFloat32, nullptr);
  p.o_desc = describe(BNNSDataLayoutVector, outputs, 0, BNNSDataTypeFloat32, nullptr);
  p.w_desc = w;
  BNNSFilterParameters options = {};
  options.flags = flags;
  return BNNSFilterCreateLayerFullyConnected(&p, &options);
}

}  // namespace

TEST(fully_connected_sparse_vector_of_the_specification) {
  // W = 2·I plus 7 at row 3, column 0.
  const uint32_t pairs[] = {0, 0, 1, 1, 2, 2, 0, 3, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7};  // column, row
  const float values[] = {2, 2, 2, 7, 2, 2, 2, 2, 2};
  const uint64_t columns[] = {0, 1, 2, 0, 3, 4, 5, 6, 7};
  const int16_t starts[] = {0, 1, 2, 3, 5, 6, 7, 8, 9};
  const float x[] = {1, 2, 3, 4, 5, 6, 7, 8}, expected[] = {2, 4, 6, 15, 10, 12, 14, 16};
  const BNNSNDArrayDescriptor shape = describe(BNNSDataLayoutRowMajorMatrix, 8, 8, BNNSDataTypeFloat32, nullptr),
                              list = describe(BNNSDataLayoutRowMajorMatrix, 2, 9, BNNSDataTypeUInt32, pairs),
                              numbers = describe(BNNSDataLayoutVector, 9, 0, BNNSDataTypeFloat32, values),
                              of_columns = describe(BNNSDataLayoutVector, 9, 0, BNNSDataTypeUInt64, columns),
                              of_rows = describe(BNNSDataLayoutVector, 9, 0, BNNSDataTypeInt16, starts);
  for (int form = 0; form < 2; ++form) {
    BNNSNDArrayDescriptor out = describe(BNNSDataLayoutFullyConnectedSparse, 8, 8, BNNSDataTypeFloat32, nullptr);
    const auto coo = BNNSNDArrayFullyConnectedSparsifySparseCOO;
    const auto csr = BNNSNDArrayFullyConnectedSparsifySparseCSR;
    const int status = form == 0
                           ? coo(&shape, &list, &numbers, &out, nullptr, 1, nullptr, 0, nullptr)
                           : csr(&shape, &of_columns, &of_rows, &numbers, &out, nullptr, 1, nullptr, 0, nullptr);
    CHECK(status == 0, "%s", obn_last_error());
    const size_t bytes = BNNSNDArrayGetDataSize(&out);
    CHECK(bytes > 0 && bytes < 8 * 8 * sizeof(float), "%zu bytes", bytes);
    for (uint32_t flags : {0u, static_cast<uint32_t>(BNNSFlagsUseClientPtr)}) {
      BNNSFilter filter = create_sparse(out, 8, 8, flags);
      float y[8] = {};
      CHECK(filter && BNNSFilterApply(filter, x, y) == 0, "%s", obn_last_error());
      CHECK(std::equal(y, y + 8, expected), "form %d: %g %g %g %g …", form, y[0], y[1], y[2], y[3]);
      BNNSFilterDestroy(filter);
    }
    std::free(out.data);
  }
}

TEST(fully_connected_sparse_agrees_with_dense) {
  Random random{5};
  for (int round = 0; round < 120; ++round) {
    const size_t inputs = random.between(1, 40), outputs = random.between(1, 30), n = random.between(1, 19);
    const size_t count = random.between(1, round % 3 == 0 ? 2 * inputs * outputs : 1 + inputs * outputs / 4);
    const bool by_output = random.coin(), own_buffer = random.coin();
    const BNNSDataType type = random.coin() ? BNNSDataTypeFloat32 : BNNSDataTypeBFloat16;
    std::vector<uint16_t> pairs;
    std::vector<float> values;
    std::vector<double> dense(outputs * inputs);
    for (size_t k = 0; k < count; ++k) {  // any order, some places twice
      const size_t o = random.below(outputs), i = random.below(inputs);
      pairs.push_back(static_cast<uint16_t>(by_output ? i : o));
      pairs.push_back(static_cast<uint16_t>(by_output ? o : i));
      values.push_back(static_cast<float>(random.between(1, 8)) * 0.25f);  // sums are exact in every type
      dense[o * inputs + i] += values.back();
    }
    const BNNSNDArrayDescriptor
        shape = by_output ? describe(BNNSDataLayoutRowMajorMatrix, inputs, outputs, type, nullptr)
                          : describe(BNNSDataLayoutColumnMajorMatrix, outputs, inputs, type, nullptr),
        list = describe(BNNSDataLayout2DFirstMajor, count, 2, BNNSDataTypeUInt16, pairs.data()),
        numbers = describe(BNNSDataLayoutVector, count, 0, BNNSDataTypeFloat32, values.data());
    std::vector<std::byte> buffer((inputs * outputs + 3) * bytes_of(type));
    std::byte* place = buffer.data() + random.below(4) * bytes_of(type);  // a value may lie there, a header need not
    BNNSNDArrayDescriptor out =
        describe(BNNSDataLayoutFullyConnectedSparse, inputs, outputs, type, own_buffer ? place : nullptr);
    const auto coo = BNNSNDArrayFullyConnectedSparsifySparseCOO;
    CHECK(coo(&shape, &list, &numbers, &out, nullptr, n, nullptr, 0, nullptr) == 0, "%s", obn_last_error());
    CHECK(BNNSNDArrayGetDataSize(&out) <= inputs * outputs * bytes_of(type), "never more than dense");
    BNNSFilter filter = create_sparse(out, inputs, outputs, random.coin() ? BNNSFlagsUseClientPtr : 0u);
    CHECK(filter, "%s", obn_last_error());
    std::vector<float> x(n * inputs), y(n * outputs), dx(n * inputs, 1.0f), db(outputs);
    for (float& value : x) value = static_cast<float>(random.between(0, 16)) - 8.0f;
    CHECK(BNNSFilterApplyBatch(filter, n, x.data(), 0, y.data(), 0) == 0, "%s", obn_last_error());
    bool same = true;
    for (size_t s = 0; s < n; ++s) {
      for (size_t o = 0; o < outputs; ++o) {
        double sum = 0.0;
        for (size_t i = 0; i < inputs; ++i) sum += dense[o * inputs + i] * x[s * inputs + i];
        same = same && y[s * outputs + o] == static_cast<float>(sum);
      }
    }
    CHECK(same, "forward, round %d", round);
    BNNSNDArrayDescriptor dx_d = describe(BNNSDataLayoutVector, inputs, 0, BNNSDataTypeFloat32, dx.data()),
                          dy_d = describe(BNNSDataLayoutVector, outputs, 0, BNNSDataTypeFloat32, y.data()),
                          db_d = describe(BNNSDataLayoutVector, outputs, 0, BNNSDataTypeFloat32, db.data()),
                          dw_d = out;
    dx_d.flags = BNNSNDArrayFlagBackpropAccumulate;
    for (float& value : y) value = static_cast<float>(random.between(0, 16)) - 8.0f;  // now dy
    CHECK(BNNSFilterApplyBackwardBatch(filter, n, x.data(), 0, &dx_d, 0, nullptr, 0, &dy_d, 0, &dw_d, &db_d) == -1 &&
              dx[0] == 1.0f && std::strstr(obn_last_error(), "weights_gradient"),
          "sparse weights have no gradient");
    CHECK(BNNSFilterApplyBackwardBatch(filter, n, nullptr, 0, &dx_d, 0, nullptr, 0, &dy_d, 0, nullptr, &db_d) == 0,
          "%s", obn_last_error());
    same = true;
    for (size_t s = 0; s < n; ++s) {
      for (size_t i = 0; i < inputs; ++i) {
        double sum = 1.0;
        for (size_t o = 0; o < outputs; ++o) sum += dense[o * inputs + i] * y[s * outputs + o];
        same = same && dx[s * inputs + i] == static_cast<float>(sum);
      }
    }
    CHECK(same, "dx, round %d", round);
    BNNSFilterDestroy(filter);
    if (!own_buffer) std::free(out.data);
  }
}

TEST(fully_connected_sparse_refuses_what_cannot_be) {
  const uint32_t pairs[] = {0, 0, 5, 1};
  const float values[] = {1, 2};
  const int32_t columns[] = {0, 1}, starts[] = {0, 2, 1};
  BNNSNDArrayDescriptor shape = describe(BNNSDataLayoutRowMajorMatrix, 4, 2, BNNSDataTypeFloat32, nullptr),
                        list = describe(BNNSDataLayoutRowMajorMatrix, 2, 2, BNNSDataTypeUInt32, pairs),
                        numbers = describe(BNNSDataLayoutVector, 2, 0, BNNSDataTypeFloat32, values),
                        of_columns = describe(BNNSDataLayoutVector, 2, 0, BNNSDataTypeInt32, columns),
                        of_rows = describe(BNNSDataLayoutVector, 3, 0, BNNSDataTypeInt32, starts);
  uint64_t buffer[32];
  std::memset(buffer, 0x55, sizeof buffer);
  BNNSNDArrayDescriptor out = describe(BNNSDataLayoutFullyConnectedSparse, 4, 2, BNNSDataTypeFloat32, buffer);
  const auto coo = [&] {
    return BNNSNDArrayFullyConnectedSparsifySparseCOO(&shape, &list, &numbers, &out, nullptr, 1, nullptr, 0, nullptr);
  };
  CHECK(coo() == -1 && std::strstr(obn_last_error(), "indices"), "column 5 of 4");
  const auto csr = BNNSNDArrayFullyConnectedSparsifySparseCSR;
  CHECK(csr(&shape, &of_columns, &of_rows, &numbers, &out, nullptr, 1, nullptr, 0, nullptr) == -1 &&
            std::strstr(obn_last_error(), "row_starts"),
        "rows that step back");
  list.data_type = BNNSDataTypeFloat32;
  CHECK(coo() == -1, "indices that are no integers");
  list.data_type = BNNSDataTypeUInt32;
  out.data = reinterpret_cast<std::byte*>(buffer) + 2;
  CHECK(coo() == -1 && std::strstr(obn_last_error(), "aligned to 4 bytes"), "%s", obn_last_error());
  out.data = buffer;
  out.size[0] = 3;
  CHECK(coo() == -1, "another shape");
  for (uint64_t word : buffer) CHECK(word == 0x5555555555555555u, "output was touched");
  const auto pack = BNNSNDArrayFullyConnectedSparsifySparseCOO;
  CHECK(pack(nullptr, &list, &numbers, &out, nullptr, 1, nullptr, 0, nullptr) == -1 &&
            pack(&shape, nullptr, &numbers, &out, nullptr, 1, nullptr, 0, nullptr) == -1 &&
            pack(&shape, &list, nullptr, &out, nullptr, 1, nullptr, 0, nullptr) == -1 &&
            pack(&shape, &list, &numbers, nullptr, nullptr, 1, nullptr, 0, nullptr) == -1,
        "NULL");
  // Damaged packing: no size, another size, a column outside, rows that step back.
  const uint32_t good[] = {0, 0, 3, 1};
  const size_t inputs = 64;
  list.data = const_cast<uint32_t*>(good);
  shape.size[0] = out.size[0] = inputs;
  CHECK(coo() == 0, "%s", obn_last_error());
  const size_t bytes = BNNSNDArrayGetDataSize(&out);
  BNNSFilter filter = create_sparse(out, inputs, 2);
  CHECK(filter, "%s", obn_last_error());
  BNNSFilterDestroy(filter);
  auto* words = reinterpret_cast<uint32_t*>(buffer);
  for (size_t k = 0; k < bytes / 4 - 2; ++k) {  // all but the two values
    const uint32_t old = words[k];
    words[k] = 0xfffffff0u;
    CHECK(!create_sparse(out, inputs, 2), "word %zu may not be anything", k);
    words[k] = old;
  }
  for (size_t wrong : {size_t{0}, bytes - 4, bytes + 4, SIZE_MAX}) {
    BNNSNDArrayDescriptor other = out;
    other.stride[kSparseBytesEntry] = wrong;
    CHECK(!create_sparse(other, inputs, 2), "%zu bytes", wrong);
  }
}

}  // namespace obn::fully_connected
