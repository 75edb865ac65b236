package bench

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// A profile of the processor is a gzipped protocol buffer, perftools.profiles.Profile: samples, each with a stack of
// locations and values; locations, each with a line for every function inlined there; functions; and a table of
// strings. Of all that, this reads whose time it was.

// usage is what the samples of a profile say, in the last of its values: nanoseconds.
type usage struct {
	total  int64
	cipher int64 // in ChaCha20-Poly1305 or below
	kernel int64 // in a system call, and not in the cipher
}

// Functions by which a sample is told: any of its stack begins with one of these.
var (
	cipherFunctions = []string{"golang.org/x/crypto/chacha20poly1305.", "golang.org/x/crypto/chacha20.", "golang.org/x/crypto/internal/poly1305."}
	kernelFunctions = []string{"syscall.Syscall", "syscall.RawSyscall", "internal/runtime/syscall", "runtime/internal/syscall", "runtime.futex",
		"runtime.epollwait", "runtime.usleep", "syscall.rawSyscall", "syscall.runtime_", "syscall.rawVfork"}
)

// profileUsage reads a profile.
func profileUsage(b []byte) (usage, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return usage{}, err
	}
	const most = 64 << 20 // bytes: a minute's is far below one MiB
	text, err := io.ReadAll(io.LimitReader(z, most))
	if err != nil {
		return usage{}, err
	}
	p := profile{locations: map[uint64][]uint64{}, functions: map[uint64]uint64{}}
	if err := fields(text, p.field); err != nil {
		return usage{}, err
	}
	return p.usage()
}

// profile is one, read.
type profile struct {
	samples   []sample
	locations map[uint64][]uint64 // to functions
	functions map[uint64]uint64   // to the index of the name
	names     []string
}

type sample struct {
	locations []uint64
	value     int64
}

var errProfile = errors.New("it is no profile")

// The numbers of the fields that are read, by message.
const (
	profileSample, profileLocation, profileFunction, profileString = 2, 4, 5, 6
	sampleLocation, sampleValue                                    = 1, 2
	locationID, locationLine                                       = 1, 4
	lineFunction                                                   = 1
	functionID, functionName                                       = 1, 2
)

func (p *profile) field(number int, v uint64, b []byte) error {
	switch number {
	case profileSample:
		var s sample
		var values []uint64
		err := fields(b, func(number int, v uint64, b []byte) (err error) {
			switch number {
			case sampleLocation:
				s.locations, err = repeated(s.locations, v, b)
			case sampleValue:
				values, err = repeated(values, v, b)
			}
			return err
		})
		if err != nil || len(values) == 0 {
			return errors.Join(err, errProfile)
		}
		s.value = int64(values[len(values)-1])
		p.samples = append(p.samples, s)
	case profileLocation:
		var id uint64
		var functions []uint64
		err := fields(b, func(number int, v uint64, b []byte) error {
			switch number {
			case locationID:
				id = v
			case locationLine:
				return fields(b, func(number int, v uint64, _ []byte) error {
					if number == lineFunction {
						functions = append(functions, v)
					}
					return nil
				})
			}
			return nil
		})
		p.locations[id] = functions
		return err
	case profileFunction:
		var id, name uint64
		err := fields(b, func(number int, v uint64, _ []byte) error {
			switch number {
			case functionID:
				id = v
			case functionName:
				name = v
			}
			return nil
		})
		p.functions[id] = name
		return err
	case profileString:
		p.names = append(p.names, string(b))
	}
	return nil
}

func (p *profile) usage() (u usage, err error) {
	has := func(s sample, prefixes []string) bool {
		for _, l := range s.locations {
			for _, f := range p.locations[l] {
				name := p.functions[f]
				if name >= uint64(len(p.names)) {
					err = errProfile
					return false
				}
				for _, prefix := range prefixes {
					if strings.HasPrefix(p.names[name], prefix) {
						return true
					}
				}
			}
		}
		return false
	}
	for _, s := range p.samples {
		u.total += s.value
		switch {
		case has(s, cipherFunctions):
			u.cipher += s.value
		case has(s, kernelFunctions):
			u.kernel += s.value
		}
	}
	return u, err
}

// fields calls f for every field of a message: v is a number, b the bytes of what is none.
func fields(message []byte, f func(number int, v uint64, b []byte) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return errProfile
		}
		message = message[n:]
		var v uint64
		var b []byte
		switch tag & 7 {
		case 0: // a number
			if v, n = binary.Uvarint(message); n <= 0 {
				return errProfile
			}
			message = message[n:]
		case 2: // bytes, after their length
			size, n := binary.Uvarint(message)
			if n <= 0 || size > uint64(len(message)-n) {
				return errProfile
			}
			b, message = message[n:n+int(size)], message[n+int(size):]
		default:
			return fmt.Errorf("%w: a field of kind %d", errProfile, tag&7)
		}
		if err := f(int(tag>>3), v, b); err != nil {
			return err
		}
	}
	return nil
}

// repeated appends a number, or many that are packed.
func repeated(list []uint64, v uint64, packed []byte) ([]uint64, error) {
	if packed == nil {
		return append(list, v), nil
	}
	for len(packed) > 0 {
		v, n := binary.Uvarint(packed)
		if n <= 0 {
			return nil, errProfile
		}
		list, packed = append(list, v), packed[n:]
	}
	return list, nil
}
