package segment

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

func TestAMarkSaysCongestionAndNothingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFlow(t)
		b := f.packet(drawPayload(t, 100))
		broken := !f.six && rapid.Bool().Draw(t, "broken")
		if broken {
			binary.BigEndian.PutUint16(b[atSum4:], binary.BigEndian.Uint16(b[atSum4:])+rapid.Uint16Range(1, 0xfffe).Draw(t, "off"))
		}
		broken = !f.six && fold(sum(b[:sizeIPv4], 0)) != 0xffff // adding may have made it right again
		f.ds |= ecnCE                                           // as it is to be
		want, was := f.packet(b[overhead(f):]), bytes.Clone(b)
		got := MarkCE(b)
		if able := was[1]&ecnBits(f) != 0; got != able {
			t.Fatalf("a packet that says %v of ECN was marked: %v", able, got)
		}
		if !got {
			if !bytes.Equal(b, was) {
				t.Fatal("a packet whose sender does not know of ECN was changed")
			}
			return
		}
		if !f.six {
			if right := fold(sum(b[:sizeIPv4], 0)) == 0xffff; right == broken {
				t.Fatalf("the header's checksum was wrong: %v; is right: %v", broken, right)
			}
			clear(b[atSum4 : atSum4+2])
			clear(want[atSum4 : atSum4+2])
		}
		if !bytes.Equal(b, want) {
			t.Fatalf("it became\n%x, want\n%x", b, want)
		}
	})
}

func overhead(f flow) int {
	n := sizeIPv4
	if f.six {
		n = sizeIPv6
	}
	if f.tcp {
		return n + sizeTCP + f.options
	}
	return n + sizeUDP
}

// ecnBits is where the second byte has the ECN field.
func ecnBits(f flow) byte {
	if f.six {
		return 0x30
	}
	return 0x03
}

func TestAMarkedSuperPacketComesApartInMarkedPieces(t *testing.T) {
	for _, f := range []flow{{tcp: true, flags: flagACK, ds: 2}, {tcp: true, six: true, flags: flagACK, ds: 1}, {ds: 1}} {
		super := f.packet(make([]byte, 5000))
		if !MarkCE(super) {
			t.Fatalf("%+v was not marked", f)
		}
		var s Splitter
		if err := s.Begin(Header{Flags: NeedsChecksum, Type: f.kind(), Size: 1000}, super); err != nil {
			t.Fatal(err)
		}
		n := 0
		for p := s.Next(); p != nil; p = s.Next() {
			if n++; p[1]&ecnBits(f) != ecnBits(f) {
				t.Errorf("piece %d is not marked", n)
			}
			if !f.six && fold(sum(p[:sizeIPv4], 0)) != 0xffff {
				t.Errorf("piece %d has a wrong header checksum", n)
			}
		}
		if n != 5 {
			t.Errorf("%d pieces", n)
		}
	}
}

func FuzzMarkCE(f *testing.F) {
	f.Add(flow{tcp: true, ds: 2}.packet([]byte("x")))
	f.Add(flow{six: true, ds: 1}.packet([]byte("x")))
	f.Add([]byte{0x45, 1})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		was := bytes.Clone(b)
		if !MarkCE(b) {
			if !bytes.Equal(b, was) {
				t.Fatal("what was not marked was changed")
			}
			return
		}
		again := bytes.Clone(b)
		if !MarkCE(again) || !bytes.Equal(again, b) {
			t.Fatal("a second mark changes something")
		}
		if was[0]>>4 == 4 {
			// The checksum is off by as much as it was.
			if x, y := fold(sum(was[:sizeIPv4], 0)), fold(sum(b[:sizeIPv4], 0)); x%0xffff != y%0xffff {
				t.Fatalf("the header summed to %04x, now to %04x", x, y)
			}
		}
	})
}
