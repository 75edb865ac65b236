package fit

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"pgregory.net/rapid"
)

// long is a packet that may be fragmented.
func long(n int, options []byte, word uint16) []byte {
	p := make([]byte, n, n+16)
	p[0] = 0x40 | byte(5+len(options)/4)
	copy(p[20:], options)
	ip := header.IPv4(p)
	binary.BigEndian.PutUint16(p[2:], uint16(n))
	binary.BigEndian.PutUint16(p[4:], 0x1234)
	binary.BigEndian.PutUint16(p[6:], word)
	p[8], p[9] = 64, 17
	ip.SetSourceAddress(from4)
	ip.SetDestinationAddress(to4)
	ip.SetChecksum(^ip.CalculateChecksum())
	for i := 20 + len(options); i < n; i++ {
		p[i] = byte(i * 7)
	}
	return p
}

func TestFragmentsMakeThePacketAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		options := slices.Concat(rapid.SliceOfNDistinct(rapid.SampledFrom([][]byte{
			{0x94, 4, 0, 0}, {7, 7, 4, 1, 2, 3, 4, 1}, {0x83, 7, 4, 9, 9, 9, 9, 1},
		}), 0, 3, func(b []byte) byte { return b[0] }).Draw(t, "options")...)
		n := rapid.IntRange(20+len(options), 4000).Draw(t, "length")
		mtu := rapid.IntRange(20+len(options)+8, 4000).Draw(t, "MTU")
		offset := rapid.IntRange(0, 1000).Draw(t, "offset") // of a packet that is a fragment itself
		more := rapid.Bool().Draw(t, "more")
		word := uint16(offset)
		if more {
			word |= moreFragments
		}
		p := long(n, options, word)
		whole := slices.Clone(p)
		var f Fragmenter
		if began := f.Begin(p, mtu); began != (n > mtu) {
			t.Fatalf("%d bytes by an MTU of %d: begun %v", n, mtu, began)
		} else if !began {
			if !bytes.Equal(p, whole) {
				t.Fatal("it was changed all the same")
			}
			return
		}
		length := 20 + len(options)
		var payload []byte
		last := false
		for piece := f.Next(); piece != nil; piece = f.Next() {
			ip := header.IPv4(slices.Clone(piece))
			if last || len(ip) > mtu || !ip.IsValid(len(ip)) || !ip.IsChecksumValid() || ip.ID() != 0x1234 || ip.Protocol() != 17 ||
				ip.SourceAddress() != from4 || ip.DestinationAddress() != to4 {
				t.Fatalf("fragment %x", ip)
			}
			if got := int(ip.FragmentOffset()); got != offset*8+len(payload) {
				t.Fatalf("offset %d, want %d", got, offset*8+len(payload))
			}
			if first := len(payload) == 0; first && !bytes.Equal(ip[20:length], options) {
				t.Fatalf("options %x", ip[20:length])
			} else if !first {
				for i := 0; i < len(options); {
					size := 1
					if options[i] > 1 {
						size = int(options[i+1])
					}
					want := options[i : i+size]
					if options[i]&0x80 == 0 {
						want = bytes.Repeat([]byte{1}, size)
					}
					if !bytes.Equal(ip[20+i:20+i+size], want) {
						t.Fatalf("options %x of %x", ip[20:length], options)
					}
					i += size
				}
			}
			payload = append(payload, ip[length:]...)
			last = ip.Flags()&header.IPv4FlagMoreFragments == 0
			if last && more {
				t.Fatal("the last fragment says that it is the last, and the packet was not")
			}
			if end := len(payload) == n-length; end && !more != last || !end && (last || len(ip[length:])%8 != 0) {
				t.Fatalf("%d bytes of %d, the last: %v", len(payload), n-length, last)
			}
		}
		if !bytes.Equal(payload, whole[length:]) {
			t.Fatal("the payload is another one")
		}
	})
}

func TestWhatMustNotBeFragmentedIsNot(t *testing.T) {
	wrong := long(1400, nil, 0)
	wrong[10]++
	far := long(1400, nil, 0x1fff)
	for name, p := range map[string][]byte{
		"forbidden": udp4(1400), "IPv6": udp6(1400), "wrong checksum": wrong, "too far back": far, "nothing": nil, "short": long(40, nil, 0)[:30],
	} {
		var f Fragmenter
		before := slices.Clone(p)
		if f.Begin(p, 300) || !bytes.Equal(before, p) {
			t.Errorf("%s: it was", name)
		}
	}
	var f Fragmenter
	if f.Begin(long(1400, nil, 0), 27) {
		t.Error("an MTU without room for eight bytes")
	}
	p := long(1400, nil, 0)
	if n := testing.AllocsPerRun(100, func() {
		p = append(p[:0], p[:1400]...)
		f.Begin(p, 1200)
		for f.Next() != nil {
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzFragmenter(f *testing.F) {
	f.Add(long(1400, nil, 0), 600)
	f.Add(long(1400, []byte{0x94, 4, 0, 0, 7, 7, 4, 1, 2, 3, 4, 1}, 0x2000), 1300)
	f.Add(long(100, []byte{7, 0, 1, 1}, 0), 64)
	f.Fuzz(func(t *testing.T, b []byte, mtu int) {
		var x Fragmenter
		if !x.Begin(b, mtu) {
			return
		}
		n := 0
		for piece := x.Next(); piece != nil; piece = x.Next() {
			if len(piece) > mtu || !header.IPv4(piece).IsValid(len(piece)) {
				t.Fatalf("fragment %x", piece)
			}
			if n++; n > len(b) {
				t.Fatal("there is no end")
			}
		}
		if n < 2 {
			t.Fatalf("%d fragments", n)
		}
	})
}
