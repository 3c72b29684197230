/* The CRC-32 of zlib, gzip and PNG, at the speed of memory where the processor can. */
#ifndef PHALANX_CRC_H
#define PHALANX_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Once, before anything else: makes the tables. */
void crc_prepare(void);

/* The checksum of what `crc` is the checksum of (0: nothing), followed by `bytes`. */
uint32_t crc_of(uint32_t crc, const void *bytes, size_t num_bytes);

#endif
