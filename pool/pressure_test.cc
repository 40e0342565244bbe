// SPDX-License-Identifier: Apache-2.0

#include "pool/pressure.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

TEST(Pressure, ReadsTheKernelsOwnFigure) {
  EXPECT_EQ(StalledPercent("some avg10=12.50 avg60=1.00 avg300=0.10 total=7\nfull avg10=0.00"),
            12.5);
  EXPECT_EQ(StalledPercent("some avg10=0.00 avg60=0.70"), 0.0);
  EXPECT_EQ(StalledPercent(""), std::nullopt);
  EXPECT_EQ(StalledPercent("full avg10=3.00"), std::nullopt);
  EXPECT_EQ(StalledPercent("some avg10=much"), std::nullopt);
}

TEST(Pressure, IsNothingOnAnIdleHostAndOneWhereEverythingWaits) {
  EXPECT_EQ(PressureOf({.cpu_percent = 0, .memory_percent = 0}), 0);
  EXPECT_EQ(PressureOf({.cpu_percent = 100, .memory_percent = 0}), 1);
  EXPECT_EQ(PressureOf({.cpu_percent = 0, .memory_percent = 50}), 1);
}

TEST(Pressure, GrowsWithWhatWaits) {
  double last = -1;
  for (const double percent : {30.0, 50.0, 60.0, 80.0}) {
    const double pressure = PressureOf({.cpu_percent = percent, .memory_percent = 0});
    EXPECT_GT(pressure, last);
    EXPECT_LE(pressure, 1);
    last = pressure;
  }
}

TEST(Pressure, IsOfLoadAndMemoryWhereTheKernelKeepsNoFigure) {
  EXPECT_EQ(PressureOf({.load_per_core = 0.5, .memory_left = 0.8}), 0);
  EXPECT_EQ(PressureOf({.load_per_core = 9, .memory_left = 0.8}), 1);
  EXPECT_EQ(PressureOf({.load_per_core = 0.5, .memory_left = 0.01}), 1);
}

TEST(Pressure, IsReadOfThisHost) {
  Pressure pressure;
  const auto now = std::chrono::steady_clock::now();
  const double first = pressure.At(now);
  EXPECT_GE(first, 0);
  EXPECT_LE(first, 1);
  EXPECT_EQ(pressure.At(now), first);
  EXPECT_GT(TotalMemoryKb(), AvailableMemoryKb());
  EXPECT_GT(AvailableMemoryKb(), 0u);
}

}  // namespace
}  // namespace hutch
