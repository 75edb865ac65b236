package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAnInnerPacketOfNoIPVersionIsOurs(t *testing.T) {
	for b := range 256 {
		kind, ok := InnerKind([]byte{byte(b), 0})
		if ok != (b < 16) || ok && kind != byte(b) {
			t.Errorf("%#x is of kind %d, %v", b, kind, ok)
		}
	}
	if _, ok := InnerKind(nil); ok {
		t.Error("a keepalive is a frame")
	}
}

func TestOffersComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Offer{Seq: rapid.Uint32().Draw(t, "seq"), Path: rapid.Uint16Min(1).Draw(t, "path"), Answer: rapid.Bool().Draw(t, "answer")}
		b := AppendOffer([]byte("before"), o)
		got, err := ParseOffer(append(b[6:], make([]byte, rapid.IntRange(0, 15).Draw(t, "padding"))...))
		if err != nil || got != o || len(b) != 6+OfferSize || string(b[:6]) != "before" {
			t.Errorf("%v comes back as %v, %v", o, got, err)
		}
	})
	if _, err := ParseOffer(AppendOffer(nil, Offer{Seq: 1})); err == nil {
		t.Error("an offer by no path is taken")
	}
}

// drawFeedback is one that can be written.
func drawFeedback(t *rapid.T) *Feedback {
	f := &Feedback{
		Session: rapid.Uint32().Draw(t, "session"), Clock: rapid.Uint64().Draw(t, "clock"), Base: rapid.Uint64Max(1<<63-1).Draw(t, "base"),
		NWords: rapid.IntRange(0, MaxFeedbackWords).Draw(t, "words"), NPaths: rapid.IntRange(0, MaxBondPaths).Draw(t, "paths"),
	}
	for i := range f.NWords {
		f.Words[i] = rapid.Uint64().Draw(t, "word")
	}
	for i := range f.NPaths {
		lo, hi := f.Base-min(f.Base, 1<<31), min(f.Base+1<<31-1, 1<<63-1)
		f.Paths[i] = FeedbackPath{
			ID: rapid.Uint16().Draw(t, "id"), Newest: rapid.Uint64Range(lo, hi).Draw(t, "newest"),
			At:      f.Clock - min(f.Clock, uint64(rapid.Uint32().Draw(t, "age"))),
			Packets: rapid.Uint32().Draw(t, "packets"), Bytes: rapid.Uint32().Draw(t, "bytes"), Unread: rapid.Bool().Draw(t, "unread"),
		}
	}
	return f
}

func TestFeedbackComesBack(t *testing.T) {
	var got Feedback // used again, as receivers do
	rapid.Check(t, func(t *rapid.T) {
		f := drawFeedback(t)
		b := append(AppendFeedback(nil, f), make([]byte, rapid.IntRange(0, 15).Draw(t, "padding"))...)
		if len(b) > MaxFeedbackSize+15 {
			t.Errorf("it is %d bytes long", len(b))
		}
		if err := ParseFeedback(b, &got); err != nil {
			t.Fatal(err)
		}
		clear(got.Words[got.NWords:])
		clear(got.Paths[got.NPaths:])
		if diff := cmp.Diff(*f, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFeedbackSaysWhichCountersCame(t *testing.T) {
	f := Feedback{Base: 100, NWords: 2, Words: [MaxFeedbackWords]uint64{1<<63 | 1, 2, 1}}
	for counter, want := range map[uint64]bool{0: false, 99: false, 100: true, 101: false, 163: true, 164: false, 165: true, 228: false, 1 << 63: false, 1<<64 - 1: false} {
		if f.Came(counter) != want {
			t.Errorf("%d came: %v", counter, !want)
		}
	}
}

func TestWhatFeedbackCannotSayOfAPathIsLeftOut(t *testing.T) {
	good := FeedbackPath{ID: 9, Newest: 5 << 32, At: 1 << 33}
	for name, p := range map[string]FeedbackPath{
		"too far behind": {Newest: 5<<32 - 1<<31 - 1, At: 1 << 33},
		"too far ahead":  {Newest: 5<<32 + 1<<31, At: 1 << 33},
		"of the future":  {Newest: 5 << 32, At: 1<<33 + 1},
		"of yesterday":   {Newest: 5 << 32, At: 1<<33 - 1<<32},
	} {
		f := &Feedback{Base: 5 << 32, Clock: 1 << 33, NPaths: 3, Paths: [MaxBondPaths]FeedbackPath{good, p, good}}
		var got Feedback
		if err := ParseFeedback(AppendFeedback(nil, f), &got); err != nil || got.NPaths != 2 || got.Paths[0] != good || got.Paths[1] != good {
			t.Errorf("%s: %v: %v", name, err, got.Paths[:got.NPaths])
		}
	}
}

func TestAbsurdFeedbackIsNoFrame(t *testing.T) {
	whole := AppendFeedback(nil, &Feedback{Base: 7, Clock: 10, NWords: 2, NPaths: 2, Paths: [MaxBondPaths]FeedbackPath{{Newest: 8, At: 5}, {Newest: 6, At: 5}}})
	var f Feedback
	if err := ParseFeedback(whole, &f); err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if ParseFeedback(whole[:n], &f) == nil {
			t.Errorf("the first %d bytes of %d are a frame", n, len(whole))
		}
	}
	for name, change := range map[string]func(b []byte){
		"another kind":          func(b []byte) { b[0] = InnerOffer },
		"too many words":        func(b []byte) { b[2] = MaxFeedbackWords + 1 },
		"too many paths":        func(b []byte) { b[3] = MaxBondPaths + 1 },
		"more words than bytes": func(b []byte) { b[2] = 20 },
		"a base of no session":  func(b []byte) { b[16] = 0x80 },
		"newest below zero":     func(b []byte) { copy(b[40:], []byte{0xFF, 0xFF, 0xFF, 0xF8}) },
		"before the origin":     func(b []byte) { b[40+7] = 11 },
	} {
		b := bytes.Clone(whole)
		change(b)
		if ParseFeedback(append(b, make([]byte, 3000)[:map[bool]int{true: 0, false: 3000}[name == "more words than bytes"]]...), &f) == nil {
			t.Errorf("%s: is a frame", name)
		}
	}
}

func TestFeedbackIsWrittenAndReadWithoutAllocation(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	f := &Feedback{Base: 7, Clock: 1 << 40, NWords: MaxFeedbackWords, NPaths: MaxBondPaths}
	for i := range f.Paths {
		f.Paths[i] = FeedbackPath{Newest: uint64(r.Uint32()) >> 2, At: 1<<40 - uint64(r.Uint32())}
	}
	buf := make([]byte, 0, MaxFeedbackSize)
	var got Feedback
	if n := testing.AllocsPerRun(100, func() {
		if err := ParseFeedback(AppendFeedback(buf, f), &got); err != nil || got.NPaths != MaxBondPaths {
			t.Fatal(err, got.NPaths)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTheDocumentKnowsTheFramesInsideASession(t *testing.T) {
	doc := readDoc(t)
	_, doc, _ = strings.Cut(doc, "## 12. Frames inside a session")
	for _, row := range []string{
		fmt.Sprintf("|       %d       |  Reserved   |A|", InnerOffer), fmt.Sprintf("|       %d       |   Reserved    |     words", InnerFeedback),
		fmt.Sprintf("words times (at most %d)", MaxFeedbackWords), fmt.Sprintf("paths times (at most %d)", MaxBondPaths),
	} {
		if !strings.Contains(doc, row) {
			t.Errorf("docs/wire.md does not say %s", row)
		}
	}
}

func FuzzParseOffer(f *testing.F) {
	addGoldens(f, "inner-")
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseOffer(b)
		if err != nil {
			return
		}
		kind, ours := InnerKind(b)
		out := AppendOffer(nil, o)
		again, err := ParseOffer(out)
		if !ours || kind != InnerOffer || err != nil || again != o {
			t.Errorf("%x of kind %d: %v comes back as %v, %v", b, kind, o, again, err)
		}
		if b[1]&^1 == 0 && !bytes.Equal(out, b[:OfferSize]) {
			t.Errorf("%x is written again as %x", b, out)
		}
	})
}

func FuzzParseFeedback(f *testing.F) {
	addGoldens(f, "inner-")
	f.Fuzz(func(t *testing.T, b []byte) {
		var x, again Feedback
		if ParseFeedback(b, &x) != nil {
			return
		}
		if kind, ours := InnerKind(b); !ours || kind != InnerFeedback {
			t.Errorf("%x is taken for feedback", b)
		}
		for c := x.Base; c < x.Base+uint64(x.NWords)*64; c++ {
			if i := c - x.Base; x.Came(c) != (x.Words[i/64]>>(i%64)&1 != 0) {
				t.Errorf("%d came: %v", c, x.Came(c))
			}
		}
		for _, p := range x.Paths[:x.NPaths] {
			if d := int64(p.Newest - x.Base); d < -1<<31 || d >= 1<<31 || p.At > x.Clock || x.Clock-p.At >= 1<<32 {
				t.Errorf("%+v is beyond what there is, of base %d and clock %d", p, x.Base, x.Clock)
			}
		}
		out := AppendFeedback(nil, &x)
		if err := ParseFeedback(out, &again); err != nil || again != x {
			t.Errorf("%+v comes back as %+v, %v", x, again, err)
		}
		if len(out) > len(b) || len(out) > MaxFeedbackSize {
			t.Errorf("%d bytes are written again as %d", len(b), len(out))
		}
	})
}
