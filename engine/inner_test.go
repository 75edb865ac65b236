package engine

import (
	"encoding/binary"
	"testing"
)

func TestTellsWhereWhatAPacketCarriesEnds(t *testing.T) {
	tcp := func(ip []byte, seq uint32, payload int) []byte {
		h := make([]byte, 32+payload) // with options of 12 bytes, as Linux has them
		binary.BigEndian.PutUint32(h[4:], seq)
		h[12] = 8 << 4
		return append(ip, h...)
	}
	four := func(proto byte, fragment uint16) []byte {
		b := make([]byte, sizeIPv4)
		b[0], b[9] = 0x45, proto
		binary.BigEndian.PutUint16(b[6:], fragment)
		return b
	}
	six := make([]byte, sizeIPv6)
	six[0], six[6] = 0x60, protoTCP
	for _, x := range []struct {
		name   string
		packet []byte
		end    uint32
		ok     bool
	}{
		{"data", tcp(four(protoTCP, 1<<14), 1000, 1300), 2300, true},
		{"data around the end", tcp(four(protoTCP, 0), 1<<32-100, 1300), 1200, true},
		{"data by IPv6", tcp(six, 1000, 1), 1001, true},
		{"an acknowledgement", tcp(four(protoTCP, 0), 1000, 0), 0, false},
		{"a header cut short", tcp(four(protoTCP, 0), 1000, 0)[:sizeIPv4+12], 0, false},
		{"datagram", tcp(four(protoUDP, 0), 1000, 1300), 0, false},
	} {
		f, ok := flowOf(x.packet)
		if !ok {
			t.Fatalf("%s: it is no packet", x.name)
		}
		if end, ok := f.carries(x.packet); ok != x.ok || ok && end != x.end {
			t.Errorf("%s: it carries something: %v, up to %d", x.name, ok, end)
		}
	}
	whole := tcp(four(protoTCP, 0), 1000, 1300)
	f, _ := flowOf(whole)
	for _, fragment := range []uint16{1 << 13, 100, 1<<13 | 100} {
		binary.BigEndian.PutUint16(whole[6:], fragment)
		if _, ok := f.carries(whole); ok {
			t.Errorf("fragment %#x is taken for a whole packet", fragment)
		}
	}
}
