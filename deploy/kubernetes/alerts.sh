#!/bin/sh
# alerts.sh > alerts.yaml: writes the rules of deploy/prometheus/alerts.yaml as
# a PrometheusRule. kustomize cannot make one of a file outside its folder.
set -eu
cat <<'END'
# Made by alerts.sh of ../prometheus/alerts.yaml. For the Prometheus operator;
# needs its CustomResourceDefinitions.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: sluice
  namespace: sluice
  labels:
    app.kubernetes.io/name: sluice
spec:
END
sed -n '/^groups:/,$s/^\(.\)/  \1/p' "$(dirname "$0")/../prometheus/alerts.yaml"
