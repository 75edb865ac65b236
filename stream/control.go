package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	"weft/key"
	"weft/wire"
)

// controlTimeout bounds reaching the coordinator: TCP, TLS and handshake, with WebSocket as the second try.
const controlTimeout = 20 * time.Second

// Control is a member's end of the stream to its coordinator: whole documents of package wire. One goroutine may
// hear and any number say.
type Control struct {
	*Messages
	url    string
	forget func() bool // ctx
}

// DialControl connects to a coordinator and says hello. The connection ends with ctx, or by Close.
func DialControl(ctx context.Context, url string, fingerprint []byte, machine key.MachinePrivate, server key.ServerPublic, hello wire.Hello) (*Control, error) {
	return DialControlBy(ctx, nil, url, fingerprint, machine, server, hello)
}

// DialControlBy is DialControl with a function that makes the TCP connection; nil: the usual one.
func DialControlBy(ctx context.Context, dial func(ctx context.Context, network, addr string) (net.Conn, error), url string, fingerprint []byte,
	machine key.MachinePrivate, server key.ServerPublic, hello wire.Hello) (*Control, error) {
	dialCtx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	m, err := DialNoise(dialCtx, Options{
		URL: url, Path: wire.ControlPath, Proto: wire.ControlProto, Fingerprint: fingerprint, DialContext: dial,
	}, machine, server)
	if err != nil {
		return nil, err
	}
	c := &Control{Messages: m, url: url, forget: context.AfterFunc(ctx, func() { m.Close() })}
	if err := c.Say(wire.NodeMessage{Hello: &hello}); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the connection.
func (c *Control) Close() error {
	c.forget()
	return c.Messages.Close()
}

// Say sends one document.
func (c *Control) Say(m wire.NodeMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return c.WriteMessage(b)
}

// Hear waits for one document.
func (c *Control) Hear() (wire.ServerMessage, error) {
	b, err := c.ReadMessage(wire.MaxServerMessage)
	if err != nil {
		return wire.ServerMessage{}, fmt.Errorf("the connection to %s ended: %w", c.url, err)
	}
	m, err := wire.ParseServerMessage(b)
	if err != nil {
		return m, fmt.Errorf("%s said something that is no answer: %w", c.url, err)
	}
	return m, nil
}
