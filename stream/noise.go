package stream

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/flynn/noise"

	"weft"
	"weft/key"
)

var suite = noise.NewCipherSuite(noise.DH25519, noise.CipherChaChaPoly, noise.HashBLAKE2s)

// Lengths in bytes of the two messages of Noise IK, with no payload: e, es, s, ss and e, ee, se.
const (
	initiationSize = 32 + (32 + 16) + 16
	responseSize   = 32 + 16
)

// prologue binds a handshake to what it is for.
func prologue(proto string) []byte { return []byte("weft stream\x00" + proto) }

func keypair[R key.Role](k key.Private[R]) noise.DHKey {
	private, public := k.RevealBytes(), k.Public().Bytes()
	return noise.DHKey{Private: private[:], Public: public[:]}
}

// DialNoise opens a stream on which messages are sealed between the machine and the holder of the server's key.
// When it returns, the server has proved its key. The context bounds the dialling, not the stream.
//
// A refusal that comes before that proof may be anybody's. So its code never is one that says that trying again
// is useless (weft.Code.Permanent): such a word is believed only inside.
func DialNoise(ctx context.Context, o Options, machine key.MachinePrivate, server key.ServerPublic) (*Messages, error) {
	serverKey := server.Bytes()
	hs, err := noise.NewHandshakeState(noise.Config{
		CipherSuite: suite, Pattern: noise.HandshakeIK, Initiator: true, Prologue: prologue(o.Proto),
		StaticKeypair: keypair(machine), PeerStatic: serverKey[:],
	})
	if err != nil {
		return nil, fmt.Errorf("the Noise handshake: %w", err)
	}
	initiation, _, _, err := hs.WriteMessage(nil, nil)
	if err != nil {
		return nil, fmt.Errorf("the server's key %s cannot be used: %w", server.Short(), err)
	}
	h := o.Header.Clone()
	if h == nil {
		h = http.Header{}
	}
	h.Set(headerHandshake, base64.RawURLEncoding.EncodeToString(initiation))
	o.Header = h
	conn, info, err := Dial(ctx, o)
	if err != nil {
		var e *weft.Error
		if errors.As(err, &e) {
			return nil, unproved(o.URL, e)
		}
		return nil, err
	}
	var send, receive *noise.CipherState
	err = within(ctx, conn, HandshakeTimeout, func() error {
		var record [2 + responseSize]byte
		if _, err := io.ReadFull(conn, record[:]); err != nil {
			return err
		}
		if binary.BigEndian.Uint16(record[:]) != responseSize {
			return errWrongServer
		}
		if _, send, receive, err = hs.ReadMessage(nil, record[2:]); err != nil {
			return errWrongServer
		}
		return nil
	})
	if err != nil {
		conn.Close()
		if errors.Is(err, errWrongServer) {
			return nil, wrongServer(o.URL)
		}
		return nil, fmt.Errorf("%s broke off its handshake: %w", o.URL, err)
	}
	return newMessages(conn, info, send, receive), nil
}

var errWrongServer = errors.New("not the server's answer")

func wrongServer(url string) *weft.Error {
	return &weft.Error{Code: weft.CodeWrongServer, Message: "the server at " + url + " does not hold the key in the token: either it was set up anew, " +
		"and this machine needs a new token from it (`weft admin key create`), or something else answers at that address"}
}

// unproved rewords a refusal by whoever answered.
func unproved(url string, e *weft.Error) error {
	switch {
	case e.Code == weft.CodeWrongServer:
		return wrongServer(url)
	case e.Code.Permanent():
		return &weft.Error{Code: weft.CodeUnavailable, Message: url + " refuses, without proving that it is the server: " + e.Message}
	}
	return e
}

// AcceptNoise makes a stream of sealed messages of a request. When it returns an error the request has been
// answered. A first message that was not made for this server's key and proto is refused with
// weft.CodeWrongServer before anything is upgraded.
//
// Noise IK's first message can be recorded and sent again by anybody: the machine key is proved by the first
// message that ReadMessage returns, and not before. Do nothing in the machine's name until then.
func AcceptNoise(w http.ResponseWriter, r *http.Request, proto string, server key.ServerPrivate) (*Messages, key.MachinePublic, error) {
	var machine key.MachinePublic
	how, err := asked(w, r, proto)
	if err != nil {
		return nil, machine, err
	}
	initiation, err := parseInitiation(r.Header)
	if err != nil {
		WriteError(w, http.StatusBadRequest, &weft.Error{Code: weft.CodeBadRequest, Message: "the request carries no " + headerHandshake + " that can be read"})
		return nil, machine, err
	}
	hs, err := noise.NewHandshakeState(noise.Config{
		CipherSuite: suite, Pattern: noise.HandshakeIK, Prologue: prologue(proto), StaticKeypair: keypair(server),
	})
	if err != nil {
		WriteError(w, http.StatusInternalServerError, &weft.Error{Code: weft.CodeInternal, Message: "this server's key cannot be used"})
		return nil, machine, fmt.Errorf("the Noise handshake: %w", err)
	}
	if _, _, _, err := hs.ReadMessage(nil, initiation); err != nil {
		WriteError(w, http.StatusForbidden, wrongServer(r.Host))
		return nil, machine, fmt.Errorf("a handshake for another server's key, or another protocol's: %w", err)
	}
	if machine, err = key.PublicFrom[key.Machine](hs.PeerStatic()); err != nil {
		return nil, machine, err
	}
	record := make([]byte, 2, 2+responseSize)
	binary.BigEndian.PutUint16(record, responseSize)
	record, receive, send, err := hs.WriteMessage(record, nil)
	if err != nil { // a key of low order
		WriteError(w, http.StatusForbidden, &weft.Error{Code: weft.CodeDenied, Message: "the machine's key is none"})
		return nil, machine, fmt.Errorf("the Noise handshake: %w", err)
	}
	conn, err := accept(w, r, proto, how)
	if err != nil {
		return nil, machine, err
	}
	if err := writeWithin(conn, record, HandshakeTimeout); err != nil {
		conn.Close()
		return nil, machine, fmt.Errorf("answering the handshake: %w", err)
	}
	info := Info{Transport: how, TLS: TLSNone}
	if r.TLS != nil {
		info.TLS = TLSUnverified // nobody asks a client for a certificate
	}
	return newMessages(conn, info, send, receive), machine, nil
}

func writeWithin(c net.Conn, b []byte, d time.Duration) error {
	_ = c.SetWriteDeadline(time.Now().Add(d))
	if _, err := c.Write(b); err != nil {
		return err
	}
	return c.SetWriteDeadline(time.Time{})
}

// parseInitiation reads Noise's first message from the header of a request.
func parseInitiation(h http.Header) ([]byte, error) {
	values := h.Values(headerHandshake)
	if len(values) != 1 || len(values[0]) != base64.RawURLEncoding.EncodedLen(initiationSize) {
		return nil, fmt.Errorf("a %s of the wrong length, or not one", headerHandshake)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(values[0])
	if err != nil || len(b) != initiationSize { // the decoder passes over line breaks
		return nil, fmt.Errorf("a %s that is not base64url", headerHandshake)
	}
	return b, nil
}
