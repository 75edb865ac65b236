package stream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The life of a self-signed certificate. Nobody asks for its dates: it is known by its fingerprint, and clocks
// are off. It begins before any clock that was never set (many begin at 2000 or later) and has "no well-defined
// expiration date" (RFC 5280 section 4.1.2.5).
var (
	certificateFrom  = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	certificateUntil = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// LoadOrCreateCertificate loads the certificate of a server, or makes a self-signed one (ECDSA P-256) for
// hosts, names or addresses, when there is none. Both files have mode 0600 and are written atomically. The
// fingerprint is the SHA-256 of the certificate: what tokens and maps pin. An existing certificate is used as
// it is, whatever its hosts are, because its fingerprint is known to nodes.
func LoadOrCreateCertificate(certFile, keyFile string, hosts []string) (cert tls.Certificate, fingerprint []byte, err error) {
	certPEM, certErr := os.ReadFile(certFile)
	keyPEM, keyErr := os.ReadFile(keyFile)
	switch {
	case certErr == nil && keyErr == nil:
	case errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist):
		if keyPEM, err = newKey(); err == nil {
			err = writeFile(keyFile, keyPEM)
		}
		if err == nil {
			certPEM, err = newCertificate(keyPEM, hosts)
		}
		if err == nil {
			err = writeFile(certFile, certPEM)
		}
	case keyErr == nil && errors.Is(certErr, fs.ErrNotExist): // we stopped between the two: nobody has seen it
		if certPEM, err = newCertificate(keyPEM, hosts); err == nil {
			err = writeFile(certFile, certPEM)
		}
	case certErr == nil && errors.Is(keyErr, fs.ErrNotExist):
		err = fmt.Errorf("the certificate %s has lost its key %s: restore the key, or remove the certificate to have both made anew", certFile, keyFile)
	default:
		err = errors.Join(certErr, keyErr)
	}
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("the server's certificate: %w", err)
	}
	if cert, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("the certificate %s and its key %s cannot be used: %w", certFile, keyFile, err)
	}
	sum := sha256.Sum256(cert.Certificate[0])
	return cert, sum[:], nil
}

func newKey() ([]byte, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func newCertificate(keyPEM []byte, hosts []string) ([]byte, error) {
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, errors.New("its key file holds no key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("its key: %w", err)
	}
	k, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("its key is a %T, not ECDSA", parsed)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "weft"},
		NotBefore:             certificateFrom,
		NotAfter:              certificateUntil,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if h != "" {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// writeFile leaves either the whole file or none, also after the power failed.
func writeFile(name string, b []byte) error {
	dir := filepath.Dir(name)
	f, err := os.CreateTemp(dir, ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
