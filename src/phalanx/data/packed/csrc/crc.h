/* The CRC-32 of zlib, gzip and PNG. */
#ifndef PHALANX_CRC_H
#define PHALANX_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Make the tables. Call once, first. */
void crc_prepare(void);

/* Return the checksum of the bytes with checksum `crc` (0: none), followed by `bytes`. */
uint32_t crc_of(uint32_t crc, const void *bytes, size_t num_bytes);

#endif
