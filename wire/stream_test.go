package wire

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
	"weft/key"
)

func TestAStreamHeaderComesBack(t *testing.T) {
	for typ := range 256 {
		for _, n := range []int{0, 1, 255, 256, 1500, MaxStreamBody} {
			b := AppendStreamHeader([]byte("dst"), StreamType(typ), n)[3:]
			gotType, gotN, err := ParseStreamHeader(b)
			if known := typ >= 1 && typ <= 7; (err == nil) != known || known && (gotType != StreamType(typ) || gotN != n) {
				t.Fatalf("type %d of %d bytes: %d, %d, %v", typ, n, gotType, gotN, err)
			}
			b[1] = 1
			if _, _, err := ParseStreamHeader(b); !errors.Is(err, ErrFrame) {
				t.Fatalf("with a reserved bit: %v", err)
			}
		}
	}
	for n := range StreamHeaderSize {
		if _, _, err := ParseStreamHeader(make([]byte, n)); !errors.Is(err, ErrFrame) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestADatagramOnTheStreamIsFramed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := weft.NodeID(rapid.Uint32().Draw(t, "id"))
		payload := rapid.SliceOfN(rapid.Byte(), 0, 1500).Draw(t, "payload")
		frame := append(AppendStreamData(nil, id, len(payload)), payload...)
		typ, n, err := ParseStreamHeader(frame)
		if err != nil || typ != StreamData || n != len(frame)-StreamHeaderSize || len(frame) != StreamDataPrefix+len(payload) {
			t.Fatalf("%d, %d, %v", typ, n, err)
		}
		if !bytes.Equal(frame[StreamHeaderSize:StreamDataPrefix], AppendData(nil, id)[HeaderSize:]) {
			t.Fatal("the NodeID is not where a Data frame over UDP has it")
		}
	})
	// As many bytes as a UDP datagram carries at most over IPv4 (RFC 768): 65,535 less the headers.
	if _, n, err := ParseStreamHeader(AppendStreamData(nil, 7, 65507)); err != nil || n != 4+65507 {
		t.Errorf("the longest datagram: %d, %v", n, err)
	}
}

func TestAStreamBindProvesTheNodeForThisStreamAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nonce := some16().Draw(t, "nonce")
		ticket := SignTicket(nil, someTicket().Draw(t, "ticket"), signing)
		frame := AppendStreamBind([]byte("dst"), nonce[:], ticket, boxAR)[3:]
		typ, n, err := ParseStreamHeader(frame)
		if err != nil || typ != StreamBind || n != len(frame)-StreamHeaderSize {
			t.Fatalf("%d, %d, %v", typ, n, err)
		}
		bind := func(body []byte) error {
			gotTicket, proof, err := ParseStreamBind(body)
			if err == nil && !StreamBindProves(nonce[:], gotTicket, proof, boxRA) {
				return key.ErrOpen
			}
			return err
		}
		refusedWhenChanged(t, frame[StreamHeaderSize:], nothing, bind)

		gotTicket, proof, _ := ParseStreamBind(frame[StreamHeaderSize:])
		if !bytes.Equal(gotTicket, ticket) {
			t.Fatal("the ticket does not come back")
		}
		other := nonce
		other[rapid.IntRange(0, 15).Draw(t, "byte of the nonce")]++
		if StreamBindProves(other[:], gotTicket, proof, boxRA) || StreamBindProves(nil, gotTicket, proof, boxRA) {
			t.Fatal("it proves itself on another stream")
		}
		if StreamBindProves(nonce[:], gotTicket, proof, boxAR) || StreamBindProves(nonce[:], gotTicket, proof, key.Box{}) {
			t.Fatal("it proves itself under another box")
		}
	})
}

func TestABindOnTheStreamHasOneLength(t *testing.T) {
	for n := range 300 {
		if _, _, err := ParseStreamBind(make([]byte, n)); (err == nil) != (n == TicketSize+key.Overhead) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestABindOverUDPIsNoneOnAStream(t *testing.T) {
	ticket := SignTicket(nil, Ticket{Node: 7}, signing)
	b := AppendBind(nil, Bind{Ticket: ticket}, boxAR)
	for n := range 28 { // whatever of the frame is taken for the nonce
		if StreamBindProves(b[:n], ticket, b[bindSealedAt:], boxRA) {
			t.Errorf("with a nonce of %d bytes it proves itself", n)
		}
	}
}

func TestAStreamBoundIsBelievedOfTheRelayAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nonce := some16().Draw(t, "nonce")
		lifetime := someSeconds().Draw(t, "lifetime")
		frame := AppendStreamBound([]byte("dst"), nonce[:], lifetime, boxRA)[3:]
		typ, n, err := ParseStreamHeader(frame)
		if err != nil || typ != StreamBound || n != len(frame)-StreamHeaderSize {
			t.Fatalf("%d, %d, %v", typ, n, err)
		}
		body := frame[StreamHeaderSize:]
		if got, err := ParseStreamBound(body, nonce[:], boxAR); err != nil || got != lifetime {
			t.Fatalf("%v, %v; want %v", got, err, lifetime)
		}
		refusedWhenChanged(t, body, nothing, func(b []byte) error {
			_, err := ParseStreamBound(b, nonce[:], boxAR)
			return err
		})
		if _, err := ParseStreamBound(body, nonce[1:], boxAR); err == nil {
			t.Fatal("it is believed on another stream")
		}
		if _, err := ParseStreamBound(body, nonce[:], boxRA); err == nil {
			t.Fatal("its sender believes it")
		}
	})
	short := boxRA.Seal(nil, []byte{1}, append([]byte("stream bound\x00"), make([]byte, 16)...))
	if _, err := ParseStreamBound(short, make([]byte, 16), boxAR); !errors.Is(err, ErrFrame) {
		t.Errorf("a lifetime of one byte: %v", err)
	}
}

func TestAStreamRefusalIsOneByte(t *testing.T) {
	frame := AppendStreamRefused(nil, RefusedExpired)
	typ, n, err := ParseStreamHeader(frame)
	if err != nil || typ != StreamRefused || n != 1 || Refusal(frame[StreamHeaderSize]) != RefusedExpired {
		t.Errorf("%x", frame)
	}
}

func BenchmarkStreamBind(b *testing.B) {
	nonce, ticket := make([]byte, StreamNonceSize), SignTicket(nil, Ticket{Node: 7, NotAfter: time.Unix(1<<40, 0)}, signing)
	buf := make([]byte, 0, 200)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendStreamBind(buf[:0], nonce, ticket, boxAR)
		t, proof, err := ParseStreamBind(buf[StreamHeaderSize:])
		if err != nil || !StreamBindProves(nonce, t, proof, boxRA) {
			b.Fatal(err)
		}
	}
}
