#include "tests/planner/gzipped.h"

#include <zlib.h>

#include "proto/base/status.h"

namespace sluice::planner {

std::string Gzipped(const std::string& text) {
  z_stream zlib = {};
  constexpr int kGzip = 16, kUsualMemory = 8;
  SLUICE_CHECK(deflateInit2(&zlib, Z_DEFAULT_COMPRESSION, Z_DEFLATED,
                            kGzip + MAX_WBITS, kUsualMemory,
                            Z_DEFAULT_STRATEGY) == Z_OK);
  std::string gzip(deflateBound(&zlib, text.size()), '\0');
  std::string in = text;  // zlib takes no const
  zlib.next_in = reinterpret_cast<Bytef*>(in.data());
  zlib.avail_in = static_cast<uInt>(in.size());
  zlib.next_out = reinterpret_cast<Bytef*>(gzip.data());
  zlib.avail_out = static_cast<uInt>(gzip.size());
  SLUICE_CHECK(deflate(&zlib, Z_FINISH) == Z_STREAM_END);
  gzip.resize(zlib.total_out);
  deflateEnd(&zlib);
  return gzip;
}

}  // namespace sluice::planner
