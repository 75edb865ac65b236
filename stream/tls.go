package stream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
)

// startTLS makes a TLS client of conn and says what is known of the certificate. ALPN offers HTTP/1.1 alone:
// HTTP/2 has no upgrade.
func startTLS(ctx context.Context, conn net.Conn, host string, fingerprint []byte, roots *x509.CertPool) (net.Conn, TLSState, error) {
	state := TLSUnverified
	c := tls.Client(&gather{Conn: conn}, &tls.Config{
		ServerName:         host,
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"http/1.1"},
		InsecureSkipVerify: true, // VerifyConnection looks, and the package comment says why it refuses nothing
		VerifyConnection: func(cs tls.ConnectionState) error {
			state = examine(cs, host, fingerprint, roots)
			return nil
		},
		// Records of full size from the start: the frames inside are packets of their own, and a browser's
		// first byte is nobody's concern here.
		DynamicRecordSizingDisabled: true,
	})
	err := within(ctx, conn, TLSTimeout, func() error { return c.HandshakeContext(ctx) })
	if err != nil {
		return nil, "", fmt.Errorf("TLS: %w", err)
	}
	return c, state, nil
}

func examine(cs tls.ConnectionState, host string, fingerprint []byte, roots *x509.CertPool) TLSState {
	leaf := cs.PeerCertificates[0]
	if sum := sha256.Sum256(leaf.Raw); bytes.Equal(sum[:], fingerprint) {
		return TLSPinned
	}
	between := x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		between.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: between}); err != nil {
		return TLSUnverified
	}
	return TLSVerified
}
