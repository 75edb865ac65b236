package stream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/flynn/noise"
	"pgregory.net/rapid"

	"weft/key"
)

func noProxy(*http.Request) (*url.URL, error) { return nil, nil }

// states are the keys of the two ends after a handshake.
func states(t testing.TB) (aSend, aReceive, bSend, bReceive *noise.CipherState) {
	a, b := key.NewPrivate[key.Machine](), key.NewPrivate[key.Server]()
	server := b.Public().Bytes()
	i, err := noise.NewHandshakeState(noise.Config{CipherSuite: suite, Pattern: noise.HandshakeIK, Initiator: true, StaticKeypair: keypair(a), PeerStatic: server[:]})
	if err != nil {
		t.Fatal(err)
	}
	r, err := noise.NewHandshakeState(noise.Config{CipherSuite: suite, Pattern: noise.HandshakeIK, StaticKeypair: keypair(b)})
	if err != nil {
		t.Fatal(err)
	}
	m, _, _, _ := i.WriteMessage(nil, nil)
	if _, _, _, err := r.ReadMessage(nil, m); err != nil {
		t.Fatal(err)
	}
	m, bReceive, bSend, err = r.WriteMessage(nil, nil)
	if err == nil {
		_, aSend, aReceive, err = i.ReadMessage(nil, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return aSend, aReceive, bSend, bReceive
}

// tape is a net.Conn that keeps what is written and gives what it holds.
type tape struct {
	net.Conn
	bytes.Buffer
}

func (c *tape) Read(b []byte) (int, error)  { return c.Buffer.Read(b) }
func (c *tape) Write(b []byte) (int, error) { return c.Buffer.Write(b) }
func (c *tape) Close() error                { return nil }

func TestEveryMessageArrivesAsItWasSentAndInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		aSend, aReceive, bSend, bReceive := states(t)
		wire := &tape{}
		a, b := newMessages(wire, Info{}, aSend, aReceive), newMessages(wire, Info{}, bSend, bReceive)
		var sent [][]byte
		for range rapid.IntRange(1, 30).Draw(rt, "messages") {
			n := rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(65500, 65540), rapid.IntRange(0, 300_000)).Draw(rt, "length")
			m := bytes.Repeat([]byte{byte(n), byte(n >> 8), 7}, n/3+1)[:n]
			sent = append(sent, m)
			if err := a.WriteMessage(m); err != nil {
				rt.Fatal(err)
			}
		}
		for i, m := range sent {
			got, err := b.ReadMessage(300_000)
			if err != nil {
				rt.Fatalf("message %d of %d bytes: %v", i, len(m), err)
			}
			if !bytes.Equal(got, m) {
				rt.Fatalf("message %d of %d bytes differs", i, len(m))
			}
		}
		if _, err := b.ReadMessage(1); err != io.EOF {
			rt.Fatalf("behind the last message: %v", err)
		}
	})
}

func TestBothEndsChangeTheirKeysTogether(t *testing.T) {
	aSend, aReceive, bSend, bReceive := states(t)
	wire := &tape{}
	a, b := newMessages(wire, Info{}, aSend, aReceive), newMessages(wire, Info{}, bSend, bReceive)
	before := aSend.UnsafeKey()
	for i := range 3*RekeyRecords + 1 {
		if err := a.WriteMessage(fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
		if got, err := b.ReadMessage(10); err != nil || string(got) != fmt.Sprint(i) {
			t.Fatalf("message %d: %q, %v", i, got, err)
		}
	}
	if aSend.UnsafeKey() == before || aSend.UnsafeKey() != bReceive.UnsafeKey() {
		t.Error("the key did not change, or not at both ends")
	}
}

func TestManyWritersMixNoMessages(t *testing.T) {
	aSend, aReceive, bSend, bReceive := states(t)
	left, right := net.Pipe()
	a, b := newMessages(left, Info{}, aSend, aReceive), newMessages(right, Info{}, bSend, bReceive)
	defer a.Close()
	defer b.Close()
	const writers, each = 8, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for range each {
				if err := a.WriteMessage(bytes.Repeat([]byte{byte(w)}, 40_000*w+1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	seen := map[byte]int{}
	for range writers * each {
		m, err := b.ReadMessage(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if len(m) != 40_000*int(m[0])+1 || !bytes.Equal(m, bytes.Repeat(m[:1], len(m))) {
			t.Fatal("a message is of two writers")
		}
		seen[m[0]]++
	}
	wg.Wait()
	for w, n := range seen {
		if n != each {
			t.Errorf("%d messages of writer %d", n, w)
		}
	}
}

func TestWhatWasTamperedWithIsNeverReturned(t *testing.T) {
	record := func(plain string) (*tape, *Messages) {
		aSend, _, bSend, bReceive := states(t)
		wire := &tape{}
		s := sealer{state: aSend}
		sealed, _ := s.seal(nil, []byte(plain))
		wire.Write([]byte{byte(len(sealed) >> 8), byte(len(sealed))})
		wire.Write(sealed)
		return wire, newMessages(wire, Info{}, bSend, bReceive)
	}
	for _, c := range []struct {
		name, plain string
		change      func(*tape)
		want        error
	}{
		{"untouched", "\x00\x00\x00\x02hi", func(*tape) {}, nil},
		{"a bit flipped", "\x00\x00\x00\x02hi", func(w *tape) { w.Bytes()[4] ^= 1 }, ErrRecord},
		{"cut", "\x00\x00\x00\x02hi", func(w *tape) { w.Truncate(w.Len() - 1) }, io.ErrUnexpectedEOF},
		{"cut after a byte", "\x00\x00\x00\x02hi", func(w *tape) { w.Truncate(1) }, io.ErrUnexpectedEOF},
		{"a record shorter than its tag", "", func(w *tape) { w.Reset(); w.Write([]byte{0, 15}) }, ErrRecord},
		{"no length", "\x00\x00\x00", func(*tape) {}, ErrRecord},
		{"longer than it says", "\x00\x00\x00\x01hi", func(*tape) {}, ErrRecord},
		{"ends inside", "\x00\x00\x00\x03hi", func(*tape) {}, io.ErrUnexpectedEOF},
		{"too long", "\xff\xff\xff\xffhi", func(*tape) {}, ErrTooLong},
	} {
		wire, m := record(c.plain)
		c.change(wire)
		b, err := m.ReadMessage(100)
		if !errors.Is(err, c.want) || c.want == nil && string(b) != "hi" {
			t.Errorf("%s: %q, %v", c.name, b, err)
		}
		if _, again := m.ReadMessage(100); c.want != nil && again == nil {
			t.Errorf("%s: the stream goes on", c.name)
		}
	}
}

func TestTheLengthOfAMessageIsNotTakenAtItsWord(t *testing.T) {
	aSend, _, bSend, bReceive := states(t)
	wire := &tape{}
	s := sealer{state: aSend}
	sealed, _ := s.seal(nil, []byte("\x40\x00\x00\x00x")) // says 1 GiB
	wire.Write([]byte{0, byte(len(sealed))})
	wire.Write(sealed)
	m := newMessages(wire, Info{}, bSend, bReceive)
	allocated := testing.Benchmark(func(b *testing.B) { // reports bytes, once is enough
		b.ReportAllocs()
		m.ReadMessage(2 << 30)
	}).AllocedBytesPerOp()
	if allocated > 1<<20 {
		t.Errorf("%d bytes are set aside for a message of which one byte came", allocated)
	}
}

func TestAStuckPeerEndsAWriteAtItsDeadline(t *testing.T) {
	aSend, aReceive, _, _ := states(t)
	left, right := net.Pipe()
	defer right.Close()
	m := newMessages(left, Info{}, aSend, aReceive)
	defer m.Close()
	m.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	if err := m.WriteMessage(make([]byte, 100)); err == nil {
		t.Error("nobody reads and the write succeeds")
	}
	m.SetWriteDeadline(time.Time{})
	if err := m.WriteMessage(make([]byte, 100)); err == nil {
		t.Error("the stream goes on behind half a record")
	}
}

func FuzzMessagesOfAStranger(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 16})
	f.Add(append([]byte{0, 32}, make([]byte, 32)...))
	f.Add(append([]byte{255, 255}, make([]byte, 70_000)...))
	_, _, bSend, bReceive := states(f)
	receiveKey := bReceive.UnsafeKey()
	f.Fuzz(func(t *testing.T, b []byte) {
		wire := &tape{}
		wire.Write(b)
		m := newMessages(wire, Info{}, bSend, noise.UnsafeNewCipherState(suite, receiveKey, 0))
		if got, err := m.ReadMessage(1 << 20); err == nil {
			t.Errorf("%x is a message: %x", b, got)
		}
	})
}

// FuzzPlaintextOfAPeer fuzzes what a proved peer may put into its records.
func FuzzPlaintextOfAPeer(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02hi"), []byte(""))
	f.Add([]byte("\x00\x00\x00\x04hi"), []byte("ho"))
	f.Add([]byte("\xff\xff\xff\xff"), []byte("x"))
	f.Add([]byte("\x00\x00\x00\x03hi"), []byte("hoho"))
	aSend, _, bSend, bReceive := states(f)
	k := bReceive.UnsafeKey()
	_ = aSend
	f.Fuzz(func(t *testing.T, first, second []byte) {
		if len(first) > 60_000 || len(second) > 60_000 {
			return
		}
		wire := &tape{}
		s := sealer{state: noise.UnsafeNewCipherState(suite, k, 0)}
		for _, plain := range [][]byte{first, second} {
			sealed, _ := s.seal(nil, plain)
			wire.Write([]byte{byte(len(sealed) >> 8), byte(len(sealed))})
			wire.Write(sealed)
		}
		m := newMessages(wire, Info{}, bSend, noise.UnsafeNewCipherState(suite, k, 0))
		got, err := m.ReadMessage(1 << 20)
		if err == nil && !bytes.HasPrefix(append(bytes.Clone(first), second...)[4:], got) {
			t.Errorf("%q and %q make %q", first, second, got)
		}
	})
}

func BenchmarkMessages(b *testing.B) {
	for _, n := range []int{100, 16 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dB", n), func(b *testing.B) {
			aSend, aReceive, bSend, bReceive := states(b)
			wire := &tape{}
			x, y := newMessages(wire, Info{}, aSend, aReceive), newMessages(wire, Info{}, bSend, bReceive)
			m := make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if err := x.WriteMessage(m); err != nil {
					b.Fatal(err)
				}
				if _, err := y.ReadMessage(n); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
