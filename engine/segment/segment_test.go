package segment

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// slowSum is RFC 1071 as it is written.
func slowSum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		s += w
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

func TestTheFastSumIsTheSlowOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 1500).Draw(t, "bytes")
		if rapid.Bool().Draw(t, "ones") {
			for i := range b {
				b[i] = 0xff
			}
		}
		got, want := fold(sum(b, 0)), slowSum(b)
		if got != want && !(got == 0xffff && want == 0 || got == 0 && want == 0xffff) {
			t.Fatalf("%x sums to %04x, want %04x", b, got, want)
		}
	})
}

// A flow is what packets of a test have in common.
type flow struct {
	six, tcp bool
	options  int // bytes of TCP options
	id       uint16
	seq      uint32
	flags    byte
	ds       byte
}

// packet makes a packet with right lengths and checksums.
func (f flow) packet(payload []byte) []byte {
	ip, all := 20, 0
	if f.six {
		ip = 40
	}
	if all = ip + 8; f.tcp {
		all = ip + 20 + f.options
	}
	b := make([]byte, all+len(payload))
	s := shape{six: f.six, tcp: f.tcp, ip: ip, all: all}
	if f.six {
		b[0], b[1], b[atHops6], b[atProto6] = 0x60|f.ds>>4, f.ds<<4, 64, protoUDP
		b[8], b[23], b[24], b[39] = 0xfd, 1, 0xfd, 2
		if f.tcp {
			b[atProto6] = protoTCP
		}
	} else {
		b[0], b[1], b[atFragment], b[atTTL4], b[atProto4] = 0x45, f.ds, 0x40, 64, protoUDP
		binary.BigEndian.PutUint16(b[atID:], f.id)
		copy(b[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
		if f.tcp {
			b[atProto4] = protoTCP
		}
	}
	binary.BigEndian.PutUint16(b[ip:], 4242)
	binary.BigEndian.PutUint16(b[ip+2:], 80)
	if f.tcp {
		binary.BigEndian.PutUint32(b[ip+atSeq:], f.seq)
		binary.BigEndian.PutUint32(b[ip+atAck:], 77)
		b[ip+atOffset], b[ip+atFlags] = byte(20+f.options)<<2, f.flags
		binary.BigEndian.PutUint16(b[ip+atWindow:], 501)
		for i := range f.options {
			b[ip+20+i] = 1
		}
	}
	copy(b[all:], payload)
	s.setLength(b, len(b))
	s.finish(b)
	return b
}

func (f flow) kind() uint8 {
	switch {
	case !f.tcp:
		return UDP
	case f.six:
		return TCPv6
	}
	return TCPv4
}

func drawFlow(t *rapid.T) flow {
	return flow{
		six: rapid.Bool().Draw(t, "IPv6"), tcp: rapid.Bool().Draw(t, "TCP"), options: 4 * rapid.IntRange(0, 10).Draw(t, "options"),
		id: rapid.Uint16().Draw(t, "id"), seq: rapid.Uint32().Draw(t, "seq"), flags: flagACK, ds: rapid.Byte().Draw(t, "ds"),
	}
}

func drawPayload(t *rapid.T, most int) []byte {
	b := make([]byte, rapid.IntRange(1, most).Draw(t, "payload"))
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "bytes"), 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// pieces takes a packet apart as TCP or UDP would have sent it, in the plain way.
func pieces(f flow, payload []byte, size int, last byte) (out [][]byte) {
	for part := range slices.Chunk(payload, size) {
		g := f
		if f.tcp && len(out)*size+len(part) == len(payload) {
			g.flags |= last
		}
		g.id += uint16(len(out))
		g.seq += uint32(len(out) * size)
		out = append(out, g.packet(part))
	}
	return out
}

func TestASuperPacketComesApartAsItsSenderWouldHaveSentIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, last := drawFlow(t), rapid.SampledFrom([]byte{0, flagPSH, flagFIN | flagPSH}).Draw(t, "flags")
		payload := drawPayload(t, 9000)
		size := rapid.IntRange(max(1, len(payload)/40), len(payload)).Draw(t, "size")
		whole := f
		if f.tcp {
			whole.flags |= last
		}
		super := whole.packet(payload)
		var s Splitter
		if err := s.Begin(Header{Flags: NeedsChecksum, Type: f.kind(), Size: uint16(size)}, super); err != nil {
			t.Fatal(err)
		}
		for i, want := range pieces(f, payload, size, last) {
			if got := s.Next(); !bytes.Equal(got, want) {
				t.Fatalf("piece %d is\n%x, want\n%x", i, got, want)
			}
		}
		if more := s.Next(); more != nil {
			t.Fatalf("there is one more piece: %x", more)
		}
	})
}

func TestAPacketWithoutChecksumGetsOneAndOthersStayAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFlow(t)
		want := f.packet(drawPayload(t, 3000))
		b := bytes.Clone(want)
		sh, _ := shapeOf(b)
		binary.BigEndian.PutUint16(b[sh.sumAt():], fold(sh.pseudo(b, len(b)-sh.ip)))
		var s Splitter
		if err := s.Begin(Header{Flags: NeedsChecksum, ChecksumStart: uint16(sh.ip), ChecksumAt: uint16(sh.sumAt() - sh.ip)}, b); err != nil {
			t.Fatal(err)
		}
		if got := s.Next(); !bytes.Equal(got, want) {
			t.Fatalf("it is\n%x, want\n%x", got, want)
		}
		b = drawPayload(t, 100)
		want = bytes.Clone(b)
		if err := s.Begin(Header{}, b); err != nil {
			t.Fatal(err)
		}
		if got := s.Next(); !bytes.Equal(got, want) || s.Next() != nil {
			t.Fatal("a packet that needs nothing was changed")
		}
	})
}

// merge puts packets through a Merger as a data plane would, and takes what comes out apart again.
func merge(t *rapid.T, in [][]byte) (out [][]byte, writes int) {
	m, spare := NewMerger(64), NewMerger(64)
	take := func(m *Merger) {
		b := bytes.Clone(m.Take())
		writes++
		var s Splitter
		if err := s.Begin(ParseHeader(b), b[HeaderSize:]); err != nil {
			t.Fatalf("what was put together does not come apart: %v", err)
		}
		for p := s.Next(); p != nil; p = s.Next() {
			out = append(out, bytes.Clone(p))
		}
	}
	for _, p := range in {
		dst := m.Place(len(p))
		if dst == nil {
			take(m)
			dst = m.Place(len(p))
		}
		// A packet that does not open leaves its traces, and none when it is undone.
		if rapid.IntRange(0, 9).Draw(t, "fails") == 0 {
			clear(dst[:len(p)])
			m.Undo()
			dst = m.Place(len(p))
		}
		copy(dst[:len(p)], p)
		if !m.Add(len(p)) {
			m.Move(len(p), spare)
			take(m)
			m, spare = spare, m
		}
	}
	if m.Len() > 0 {
		take(m)
	}
	return out, writes
}

func TestWhatIsPutTogetherComesApartAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in [][]byte
		for range rapid.IntRange(1, 4).Draw(t, "flows") {
			f := drawFlow(t)
			payload := drawPayload(t, 20000)
			size := rapid.IntRange(max(1, len(payload)/60), len(payload)).Draw(t, "size")
			list := pieces(f, payload, size, rapid.SampledFrom([]byte{0, flagPSH}).Draw(t, "flags"))
			// Sometimes something is wrong with one: a bit, its order, its length, or it is no such packet at all.
			i := rapid.IntRange(0, len(list)-1).Draw(t, "which")
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0:
				list[i][rapid.IntRange(0, len(list[i])-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			case 1:
				list[0], list[i] = list[i], list[0]
			case 2:
				list[i] = list[i][:rapid.IntRange(1, len(list[i])).Draw(t, "length")]
			case 3:
				list[i] = drawPayload(t, 200)
			}
			in = append(in, list...)
		}
		want := make([][]byte, len(in))
		for i := range in {
			want[i] = bytes.Clone(in[i])
		}
		got, _ := merge(t, in)
		if len(got) != len(want) {
			t.Fatalf("%d packets became %d", len(want), len(got))
		}
		for i := range want {
			if !bytes.Equal(unnumbered(got[i]), unnumbered(want[i])) {
				t.Fatalf("packet %d of %d became\n%x, was\n%x", i, len(want), got[i], want[i])
			}
		}
	})
}

// unnumbered takes the identification, and with it the checksum, out of IPv4 headers that forbid fragments: RFC 6864 gives
// it no meaning there.
func unnumbered(b []byte) []byte {
	if s, ok := shapeOf(b); ok && !s.six && b[atFragment]&0x40 != 0 && fold(sum(b[:sizeIPv4], 0)) == 0xffff {
		b = bytes.Clone(b)
		clear(b[atID : atID+2])
		clear(b[atSum4 : atSum4+2])
	}
	return b
}

func TestAFlowInOrderIsWrittenAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFlow(t)
		payload := make([]byte, 44*1368)
		list := pieces(f, payload, 1368, flagPSH)
		if _, writes := merge(t, list); writes != 1 {
			t.Fatalf("%d packets in order were written in %d pieces", len(list), writes)
		}
	})
}

func BenchmarkSplit64KiB(b *testing.B) {
	f := flow{tcp: true, flags: flagACK, options: 12}
	super := f.packet(make([]byte, 44*1368))
	var s Splitter
	b.SetBytes(int64(len(super)))
	b.ReportAllocs()
	work := make([]byte, len(super))
	for b.Loop() {
		copy(work, super)
		s.Begin(Header{Type: TCPv4, Size: 1368}, work)
		for s.Next() != nil {
		}
	}
}

func BenchmarkMerge64KiB(b *testing.B) {
	f := flow{tcp: true, flags: flagACK, options: 12}
	list := pieces(f, make([]byte, 44*1368), 1368, 0)
	m := NewMerger(64)
	b.SetBytes(44 * 1420)
	b.ReportAllocs()
	for b.Loop() {
		for _, p := range list {
			copy(m.Place(len(p))[:len(p)], p) // the copy is in place of the cipher
			if !m.Add(len(p)) {
				b.Fatal("not merged")
			}
		}
		m.Take()
	}
}

func BenchmarkSum1420(b *testing.B) {
	p := make([]byte, 1420)
	b.SetBytes(1420)
	for b.Loop() {
		sum(p, 0)
	}
}
